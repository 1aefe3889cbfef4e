"""The objective against a slow NumPy twin, and what must hold for any input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.learner.objectives import IsReinforce, TrainedTokens

FLOATS = st.floats(-60, 0, width=32)
TOKENS = st.lists(st.tuples(FLOATS, FLOATS, st.floats(-3, 3, width=32)), min_size=1, max_size=12)


def slow_is_reinforce(logp, mu, advantage, c=5.0, low=0.05, high=10.0):
    """One token at a time: (objective, gradient by log pi, clipped, masked)."""
    out = []
    for p, m, a in zip(logp, mu, advantage, strict=True):
        w = math.exp(min(20.0, max(-20.0, p - m)))
        if w < low or w > high:
            out.append((0.0, 0.0, False, True))
        else:
            out.append((min(w, c) * a * p, min(w, c) * a, w > c, False))
    return out


def run(logp, mu, advantage, **kwargs):
    logp_N = torch.tensor(logp, dtype=torch.float32, requires_grad=True)
    terms = IsReinforce(**kwargs)(
        TrainedTokens(
            logprobs_N=logp_N,
            behaviour_logprobs_N=torch.tensor(mu, dtype=torch.float32),
            proximal_logprobs_N=logp_N.detach(),
            lags_N=torch.zeros(len(logp), dtype=torch.int64),
            advantages_N=torch.tensor(advantage, dtype=torch.float32),
            sequence_N=torch.zeros(len(logp), dtype=torch.int64),
        )
    )
    terms.objective_N.sum().backward()
    return terms, logp_N.grad.numpy()


@given(TOKENS)
def test_equals_the_slow_twin(tokens):
    logp, mu, advantage = (np.array(column, dtype=np.float32) for column in zip(*tokens, strict=True))
    ratio = np.exp(np.clip(logp.astype(np.float64) - mu, -20, 20))
    if any(abs(ratio[i] / edge - 1) < 1e-4 for i in range(len(ratio)) for edge in (0.05, 5.0, 10.0)):
        return  # float32 and float64 may fall on different sides of an edge
    terms, gradient = run(logp, mu, advantage)
    expected = slow_is_reinforce(logp.astype(np.float64), mu.astype(np.float64), advantage.astype(np.float64))
    np.testing.assert_allclose(terms.objective_N.detach(), [e[0] for e in expected], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, [e[1] for e in expected], rtol=1e-4, atol=1e-5)
    assert terms.clipped_N.tolist() == [e[2] for e in expected]
    assert terms.masked_N.tolist() == [e[3] for e in expected]


@given(TOKENS)
def test_no_token_pushes_harder_than_c_times_its_advantage(tokens):
    logp, mu, advantage = zip(*tokens, strict=True)
    _, gradient = run(logp, mu, advantage)
    assert np.isfinite(gradient).all()
    assert (np.abs(gradient) <= 5.0 * np.abs(advantage) + 1e-6).all()


def test_on_policy_is_plain_reinforce():
    _, gradient = run([-1.0, -2.0], [-1.0, -2.0], [0.5, -0.25])
    np.testing.assert_array_equal(gradient, np.array([0.5, -0.25], dtype=np.float32))


def test_masks_and_clips_at_its_edges():
    weights = np.array([0.04, 0.06, 4.0, 7.0, 11.0])
    terms, gradient = run(list(np.log(weights) - 2.0), [-2.0] * 5, [1.0] * 5)
    assert terms.masked_N.tolist() == [True, False, False, False, True]
    assert terms.clipped_N.tolist() == [False, False, False, True, False]
    np.testing.assert_allclose(gradient, [0.0, 0.06, 4.0, 5.0, 0.0], rtol=1e-5)


def test_names_what_is_wrong():
    with pytest.raises(ValueError, match="mask_below"):
        IsReinforce(mask_below=2.0)
    with pytest.raises(ValueError, match="clip"):
        IsReinforce(clip=0.0)
