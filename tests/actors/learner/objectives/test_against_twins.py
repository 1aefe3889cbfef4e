"""Every objective against its twin, value and gradient, in float64; and in float32, as the learner runs it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import drawing
from twins.comparing import difference, objective_differences, terms_and_gradient, trained_tokens
from twins.objectives import gspo
from twins.rows import OBJECTIVES
from twins.tokens import Token, gradient

BOUND = 1e-9

SETTINGS = settings(max_examples=40, deadline=None)
LOGPROBS = st.floats(-60, 0)
SEQUENCES = st.lists(
    st.tuples(
        st.floats(-3, 3), st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS, st.integers(0, 40)), min_size=1, max_size=6)
    ).map(lambda drawn: [Token(logp, logp, mu, old, drawn[0], lag) for logp, mu, old, lag in drawn[1]]),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", OBJECTIVES)
@SETTINGS
@given(sequences=SEQUENCES)
def test_equals_its_twin(name: str, sequences: list[list[Token]]) -> None:
    objective, twin = OBJECTIVES[name]
    value, slope = objective_differences(objective, twin, sequences)
    assert value < BOUND
    assert slope < BOUND


@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_its_twin_over_a_realistic_batch(name: str) -> None:
    """Ratios near 1 as well as far out, which floats at large seldom are; all branches are taken."""
    objective, twin = OBJECTIVES[name]
    rng = np.random.default_rng(1)
    for _ in range(20):
        value, slope = objective_differences(objective, twin, drawing.sequences(rng))
        assert max(value, slope) < BOUND


def test_the_draws_take_every_branch() -> None:
    rng = np.random.default_rng(1)
    batch = [sequence for _ in range(20) for sequence in drawing.sequences(rng)]
    for name, (objective, _) in OBJECTIVES.items():
        terms = objective(trained_tokens(batch))
        plain = ~(terms.clipped_N | terms.masked_N)
        assert plain.float().mean() > 0.1, name
        cut = 0.0 if name == "cross_entropy" else 0.02
        assert (terms.clipped_N | terms.masked_N).float().mean() >= cut, name


@pytest.mark.parametrize("name", OBJECTIVES)
def test_float32_is_near_float64(name: str) -> None:
    """Away from the kinks, at which the two may fall on different sides."""
    objective, _ = OBJECTIVES[name]
    rng = np.random.default_rng(2)
    sequences = [
        [
            Token(logp, logp, logp + float(rng.normal(0, 0.02)), logp + float(rng.normal(0, 1e-5)), advantage, 2)
            for logp in -rng.exponential(1.0, 9)
        ]
        for advantage in rng.normal(size=8)
    ]
    exact, exact_slopes = terms_and_gradient(objective, trained_tokens(sequences))
    terms, slopes = terms_and_gradient(objective, trained_tokens(sequences, torch.float32))
    assert terms.objective_N.dtype == torch.float32
    assert difference(terms.objective_N.detach().numpy(), exact.objective_N.detach().numpy()) < 1e-5
    assert difference(slopes, exact_slopes) < 1e-5
    assert torch.equal(terms.clipped_N, exact.clipped_N)
    assert torch.equal(terms.masked_N, exact.masked_N)


@SETTINGS
@given(sequences=SEQUENCES)
def test_gspo_has_the_gradient_of_the_paper(sequences: list[list[Token]]) -> None:
    """By hand, its eq. 10: of the mean over tokens s_i A / |y_i| by each log pi, so s_i A of their sum."""
    for sequence in sequences:
        mean = sum(token.held - token.old for token in sequence) / len(sequence)
        s, a = float(np.exp(np.clip(mean, -20, 20))), sequence[0].advantage
        outside = (a > 0 and s > 1 + 4e-4) or (a < 0 and s < 1 - 3e-4) or abs(mean) > 20
        expected = [0.0 if outside else s * a] * len(sequence)
        assert difference(gradient(gspo, sequence), expected) < BOUND
