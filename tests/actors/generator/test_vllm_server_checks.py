"""What a server of somebody else's is refused for, before anything is loaded: models that it would load in part."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
from scripted_vllm_server import SETTINGS

from headrace.actors.generator.vllm_server_checks import reload_problems

CPU = SETTINGS | {"device_config": {"device": "cpu"}}
GPU = SETTINGS | {"device_config": {"device": "cuda"}}


def config_of(kind: str, **options: Any) -> dict[str, Any]:
    import transformers

    return getattr(transformers, kind)(**options).to_dict()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (("LlamaConfig", {}), []),
        (("LlamaConfig", {"tie_word_embeddings": True}), ["tie_word_embeddings"]),
        (("Gemma3TextConfig", {}), ["tie_word_embeddings"]),  # its default
        (("Gemma3Config", {}), ["tie_word_embeddings"]),  # of the text in it
        (("Qwen3MoeConfig", {}), ["experts"]),
        (("MixtralConfig", {}), ["experts"]),
        (("DeepseekV3Config", {}), ["experts"]),
        (("Qwen3MoeConfig", {"tie_word_embeddings": True}), ["tie_word_embeddings", "experts"]),
    ],
)
def test_on_a_cpu_tied_heads_and_experts_are_refused(config: Any, says: list[str]) -> None:
    kind, options = config
    found = reload_problems(CPU, config_of(kind, **options))
    assert len(found) == len(says)
    assert all(word in text and "use generator/engine=vllm" in text for word, text in zip(says, found, strict=True))
    assert reload_problems(GPU, config_of(kind, **options)) == []
