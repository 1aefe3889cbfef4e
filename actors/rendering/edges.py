"""How a prompt begins (BOS) and how a turn ends (stop tokens), for every renderer. No state."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.actors.rendering.tokenizer import ModelTokenizer


def with_bos(ids: list[int], bos: int | None) -> list[int]:
    """Exactly one BOS where one is wanted, whether or not the text already had it."""
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def stop_ids(tokenizer: ModelTokenizer, names: Sequence[str]) -> list[int]:
    """The ids of `names`. Raises ValueError for a name that is no token."""
    found = {name: tokenizer.token_id(name) for name in names}
    missing = [name for name, token_id in found.items() if token_id is None]
    if missing:
        raise ValueError(f"stop_tokens must be tokens of the model's vocabulary, got {missing}")
    return [token_id for token_id in found.values() if token_id is not None]


def bos_id(tokenizer: ModelTokenizer, add_bos: bool | None) -> int | None:
    """The token that prompts begin with, or None. Raises ValueError where one is demanded and the model has none."""
    bos = tokenizer.named_id("bos_token")
    if add_bos and bos is None:
        raise ValueError(
            "add_bos is true, but the model's tokenizer_config.json names no bos_token; set add_bos: false"
        )
    wanted = tokenizer.adds_bos if add_bos is None else add_bos
    return bos if wanted else None
