"""k1, k2 and k3 against slow twins, values and gradients; what a KL in the reward makes of advantages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twins import kl as twins

from headrace.actors.learner.credit import returns_to_go, whiten
from headrace.actors.learner.kl import K1, K2, K3

PAIRS = [(K1, twins.k1), (K2, twins.k2), (K3, twins.k3)]
LOGPROBS = st.lists(st.tuples(st.floats(-12, 0), st.floats(-12, 0)), min_size=1, max_size=12)


def run(penalty, pairs, dtype=torch.float64):
    pi_N = torch.tensor([p for p, _ in pairs], dtype=dtype, requires_grad=True)
    taken_N = penalty(pi_N, torch.tensor([r for _, r in pairs], dtype=dtype))
    taken_N.sum().backward()
    return taken_N.detach().numpy(), pi_N.grad.numpy()


@pytest.mark.parametrize(("penalty", "twin"), PAIRS)
@settings(deadline=None)
@given(pairs=LOGPROBS, beta=st.floats(1e-3, 1.0))
def test_equals_the_slow_twin(penalty, twin, pairs, beta):
    expected = np.array([twin(p, r, beta) for p, r in pairs])
    values, gradients = run(penalty(coefficient=beta), pairs)
    np.testing.assert_allclose(values, expected[:, 0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(gradients, expected[:, 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("penalty", [K2(coefficient=0.5), K3(coefficient=0.5)])
@settings(deadline=None)
@given(pairs=LOGPROBS)
def test_the_gradient_is_that_of_the_value(penalty, pairs):
    inputs = torch.tensor([p for p, _ in pairs], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([r for _, r in pairs], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda pi: penalty(pi, reference), (inputs,), atol=1e-3, rtol=1e-4)


FAR = st.floats(-(2.0**100), 0, width=32)


@pytest.mark.parametrize("kind", [K1, K2, K3])
@settings(deadline=None)
@given(pairs=st.lists(st.tuples(FAR, FAR), min_size=1, max_size=8))
def test_is_finite_for_any_input(kind, pairs):
    values, gradients = run(kind(coefficient=0.1), pairs, torch.float32)
    assert np.isfinite(values).all()
    assert np.isfinite(gradients).all()
    if kind is not K1:
        assert (values >= 0).all()


@pytest.mark.parametrize("kind", [K1, K2, K3])
def test_nothing_is_taken_where_the_policy_is_the_reference(kind):
    values, _ = run(kind(coefficient=0.1), [(-1.5, -1.5)])
    assert values.tolist() == [0.0]


def test_only_k1_stands_in_the_reward():
    assert [kind(coefficient=0.1).in_reward for kind in (K1, K2, K3)] == [True, False, False]


ROWS = st.lists(st.tuples(st.floats(-3, 3), st.lists(st.floats(-1, 1), min_size=1, max_size=5)), min_size=1, max_size=5)


@settings(deadline=None)
@given(rows=ROWS)
@pytest.mark.parametrize("whitens", [False, True])
def test_a_kl_in_the_reward_equals_reinforce_pp(rows, whitens):
    """arXiv 2501.03262: A_t = A − sum of what is still to come, then normalised over the tokens of the batch."""
    advantages, penalties = zip(*rows, strict=True)
    credited = [a - returns_to_go(np.array(p)) for a, p in rows]
    if whitens:
        assume(np.concatenate(credited).std() > 1e-3)
        credited = whiten(credited)
    expected = twins.reinforce_pp(advantages, penalties, whiten=whitens)
    np.testing.assert_allclose(np.concatenate(credited), np.concatenate(expected), rtol=1e-9, atol=1e-9)
    if whitens:
        assert np.concatenate(credited).mean() == pytest.approx(0, abs=1e-9)
        assert np.concatenate(credited).std() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kind", [K1, K2, K3])
@pytest.mark.parametrize("coefficient", [0.0, -0.1, float("nan"), float("inf")])
def test_a_coefficient_that_cannot_be_is_refused(kind, coefficient):
    with pytest.raises(ValueError, match=r"kl.coefficient must be > 0 and finite.*learner/kl=none"):
        kind(coefficient=coefficient)
