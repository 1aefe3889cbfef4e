"""A character-level tokenizer made on the spot: one token a character, three special ones, no download."""

from __future__ import annotations

import string
from typing import Any

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
"""Ids 0 to 2, in this order; a text begins with its first character, there is no token before it. The alphabet's
characters follow in theirs."""

PRINTABLE_ASCII = "\n " + string.digits + string.ascii_letters + string.punctuation


def character_tokenizer(alphabet: str) -> Any:
    """A PreTrainedTokenizerFast. A chat renders to its contents, one after the other; encoding a text adds nothing.
    Characters outside the alphabet become <unk>. A special token's
    name in a text is that token, as in every tokenizer of this kind. Raises ValueError where a character occurs
    twice."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    if not alphabet or len(set(alphabet)) != len(alphabet):
        raise ValueError(f"model.alphabet must hold at least one character and none twice, got {alphabet!r}")
    special = [PAD, EOS, UNKNOWN]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    # BPE without merges splits into characters and, unlike a word-level model, keeps spaces and newlines as they are.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )
