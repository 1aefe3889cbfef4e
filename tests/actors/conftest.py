"""Shared by the tests of actors: a tiny tokenizer made in code, and chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.actors.rendering import ChatRenderer, ModelTokenizer

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLE_MARKERS = ("<|user|>", "<|assistant|>", "<|observation|>")

QWEN_LIKE = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""F3a: im_start role newline content im_end newline; tool messages share one user turn; past reasoning is stripped."""

GLM_LIKE = """\
{%- for message in messages %}
{{- ('<|observation|>' if message.role == 'tool' else '<|' + message.role + '|>') + '\\n' + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}
"""
"""F3b: a turn is closed only by the next role's marker."""

APPEND_ONLY = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""F3c: every message is rendered by itself, whatever follows."""

TEMPLATES = {"qwen_like": QWEN_LIKE, "glm_like": GLM_LIKE, "append_only": APPEND_ONLY}


def tiny_bpe() -> Tokenizer:
    """F1: byte-level BPE without regex; the byte symbols by code point, nine merges, special tokens."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(symbols)}
    newline, space = "\u010a", "\u0120"
    merges = [
        ("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), (newline, newline),
        (space, "P"), ("a", "n"), (space + "P", "an"), ("1", "2"),
    ]  # fmt: skip
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = (IM_START, IM_END, END_OF_TEXT, *ROLE_MARKERS)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return tokenizer


MakeTokenizer = Callable[..., ModelTokenizer]


@pytest.fixture
def make_tokenizer() -> MakeTokenizer:
    """(chat_template, **named_tokens) → F1; EOS is im_end unless another is named."""

    def make(chat_template: str | None = None, **named_tokens: str) -> ModelTokenizer:
        return ModelTokenizer(
            tiny_bpe(), named_tokens={"eos_token": IM_END, **named_tokens}, chat_template=chat_template
        )

    return make


@pytest.fixture
def tokenizer(make_tokenizer: MakeTokenizer) -> ModelTokenizer:
    return make_tokenizer()


@pytest.fixture
def chat(make_tokenizer: MakeTokenizer) -> Callable[[str], ChatRenderer]:
    """A ChatRenderer by the name of its template; the GLM-like one has endoftext as its EOS."""

    def make(name: str) -> ChatRenderer:
        eos = END_OF_TEXT if name == "glm_like" else IM_END
        return ChatRenderer(make_tokenizer(TEMPLATES[name], eos_token=eos))

    return make


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model folder as far as environments read it: F1 with the append-only template, 512 tokens of context."""
    tiny_bpe().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": IM_END}}))
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "eos_token_id": 267}))
    (tmp_path / "chat_template.jinja").write_text(APPEND_ONLY)
    return tmp_path
