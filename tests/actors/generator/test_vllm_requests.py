"""The translation of vLLM's outputs: versions by span, and what is refused. Needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.actors.generator.vllm_requests import completion


def output(token_ids: list[int], logprobs: Any, spans: Any, reason: str = "stop", prompt: Any = None) -> Any:
    choice = SimpleNamespace(token_ids=token_ids, logprobs=logprobs, weight_versions=spans, finish_reason=reason)
    return SimpleNamespace(outputs=[choice], prompt_token_ids=[1, 5, 6], prompt_logprobs=prompt)


def entries(*pairs: tuple[int, float]) -> list[dict[int, Any]]:
    return [{token: SimpleNamespace(logprob=logprob)} for token, logprob in pairs]


def span(version: str, start: int, end: int) -> Any:
    return SimpleNamespace(version=version, start=start, end=end)


def test_spans_become_versions_of_tokens() -> None:
    found = completion(output([5, 6, 7], entries((5, -0.5), (6, -1.0), (7, 0.0)), [span("3", 0, 2), span("4", 2, 3)]))
    assert found.token_ids.tolist() == [5, 6, 7]
    assert found.logprobs.tolist() == [-0.5, -1.0, 0.0]
    assert found.versions.tolist() == [3, 3, 4]
    assert found.finish_reason == "stop"


def test_the_prompts_own_log_probs_are_there_where_they_were_asked_for() -> None:
    plain = [[5], entries((5, -0.5)), [span("3", 0, 1)]]
    assert completion(output(*plain)).prompt_logprobs.tolist() == []
    prompt = [None, *entries((5, -0.25), (6, -1.5))]
    assert completion(output(*plain, prompt=prompt)).prompt_logprobs.tolist() == [-0.25, -1.5]


def test_an_unknown_ending_is_aborted() -> None:
    assert completion(output([], [], [], reason="abort")).finish_reason == "aborted"


@pytest.mark.parametrize("logprobs", [None, entries((5, -0.5))])
def test_missing_logprobs_are_never_invented(logprobs: Any) -> None:
    with pytest.raises(ValueError, match="2 tokens without a log-prob for each"):
        completion(output([5, 6], logprobs, [span("1", 0, 2)]))


def test_a_token_without_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="without a weight version"):
        completion(output([5, 6], entries((5, -0.5), (6, -0.5)), [span("1", 0, 1)]))
