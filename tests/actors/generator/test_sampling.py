"""Sampling from logits: log-probs, temperature, greedy, top-p, and the uniform number that decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.actors.generator.sampling import sample

LOGITS = torch.tensor([[2.0, 1.0, 0.0]])


def one(temperature: float, uniform: float, top_p: float | None = None) -> tuple[int, float]:
    tokens, logprobs = sample(
        LOGITS,
        torch.tensor([temperature]),
        None if top_p is None else torch.tensor([top_p]),
        torch.tensor([uniform], dtype=torch.float64),
    )
    return int(tokens[0]), float(logprobs[0])


def test_the_logits_are_divided_by_the_temperature() -> None:
    """cases D77: PrimeIntellect-ai/prime-rl#697 (also huggingface/trl#4159, #4163)."""
    assert one(0.6, 0.0) == (0, pytest.approx(-0.2026, abs=1e-4))
    assert one(1.0, 0.0) == (0, pytest.approx(-0.4076, abs=1e-4))


def test_greedy_reports_temperature_one() -> None:
    assert one(0.0, 0.999) == (0, pytest.approx(-0.4076, abs=1e-4))


def test_the_uniform_number_walks_the_distribution() -> None:
    p = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    for token, (low, high) in enumerate([(0.0, p[0]), (p[0], p[0] + p[1]), (p[0] + p[1], 1.0)]):
        for u in (low + 1e-5, (low + high) / 2, high - 1e-5):
            assert one(1.0, u)[0] == token


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    uniforms = torch.linspace(0, 1, 2001, dtype=torch.float64)
    uniforms[-1] = 1 - 2**-53
    tokens, logprobs = sample(logits.expand(2001, -1), torch.ones(2001), None, uniforms)
    assert set(tokens.tolist()) == {1, 3}
    assert torch.isfinite(logprobs).all()


def test_top_p_renormalises_what_it_keeps() -> None:
    token, logprob = one(1.0, 0.999, top_p=0.7)
    p = np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum()
    assert (token, logprob) == (1, pytest.approx(np.log(p[1]), abs=1e-5))
    assert one(1.0, 0.999, top_p=0.5)[0] == 0
    assert one(1.0, 0.999, top_p=1.0)[0] == 2


def test_rows_do_not_depend_on_their_neighbours() -> None:
    torch.manual_seed(0)
    logits, temperature = torch.randn(6, 50), torch.tensor([0.0, 0.5, 1.0, 1.5, 0.0, 1.0])
    uniform = torch.rand(6, dtype=torch.float64)
    together, _ = sample(logits, temperature, None, uniform)
    alone = [int(sample(logits[i : i + 1], temperature[i : i + 1], None, uniform[i : i + 1])[0]) for i in range(6)]
    assert together.tolist() == alone
