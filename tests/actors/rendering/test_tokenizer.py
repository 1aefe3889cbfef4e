"""The model folder's tokenizer, and the facts that the multi-turn cases rest on."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.actors.rendering import ModelTokenizer, PlainRenderer, load_renderer


def test_the_tiny_tokenizer_is_the_one_of_the_cases(tokenizer):
    """cases F1: the ids that decoding and encoding again would change."""
    assert tokenizer.encode("hello") == [259]
    assert tokenizer.decode([256, 258]) == "hello"
    assert tokenizer.encode("12") == [264]
    one, two = tokenizer.encode("1")[0], tokenizer.encode("2")[0]
    assert tokenizer.decode([one, two]) == "12"
    assert 260 in tokenizer.encode("assistant\n\nhi")
    assert 260 not in [*tokenizer.encode("assistant\n"), *tokenizer.encode("\nhi")]
    emoji = tokenizer.encode("\N{GRINNING FACE}")
    assert len(emoji) == 4
    assert tokenizer.decode(emoji[:2]) == "\N{REPLACEMENT CHARACTER}"
    assert len(tokenizer.encode(tokenizer.decode(emoji[:2]))) == 3


def test_special_tokens_are_kept_or_dropped_on_purpose(tokenizer):
    ids = tokenizer.encode("hello<|im_end|>")
    assert tokenizer.decode(ids) == "hello"
    assert tokenizer.decode(ids, special_tokens=True) == "hello<|im_end|>"


def test_a_folder_gives_tokenizer_template_and_every_eos(model_folder: Path):
    tokenizer = ModelTokenizer.from_folder(model_folder)
    assert tokenizer.eos_token_ids == (267, 266)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.startswith("{%- for")


def test_a_folder_without_tokenizer_says_what_to_do(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        ModelTokenizer.from_folder(tmp_path)


def test_the_template_may_stand_in_the_tokenizer_config(model_folder: Path):
    (model_folder / "chat_template.jinja").unlink()
    (model_folder / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]}'
    )
    assert ModelTokenizer.from_folder(model_folder).chat_template == "yes"


def test_sixteen_threads_share_one_tokenizer(model_folder: Path):
    """cases I125: huggingface/transformers#47085, "Already borrowed" among threads."""
    renderer = load_renderer("plain", str(model_folder))
    assert isinstance(renderer, PlainRenderer)
    texts = [f"hello {'12' * (n % 17)} {n}" for n in range(250)]
    serial = [renderer._tokenizer.encode(text) for text in texts]

    def work(_: int) -> list[list[int]]:
        return [renderer._tokenizer.encode(text) for text in texts]

    with ThreadPoolExecutor(16) as pool:
        assert all(result == serial for result in pool.map(work, range(16)))


def test_the_environment_process_loads_neither_torch_nor_transformers():
    code = "import sys, headrace.actors.environment as e; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_an_unknown_renderer_is_named(model_folder: Path):
    with pytest.raises(ValueError, match="auto, chat, plain"):
        load_renderer("qwen", str(model_folder))
