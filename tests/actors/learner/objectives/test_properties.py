"""What holds for every objective and any input: finite, bounded where its paper bounds it, REINFORCE on-policy, and no
token of one sequence in another's terms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twins.comparing import terms_and_gradient, trained_tokens
from twins.rows import OBJECTIVES
from twins.tokens import Token

SETTINGS = settings(max_examples=40, deadline=None)
LOGPROBS = st.floats(-1e4, 0, width=32)
ANY_SEQUENCES = st.lists(
    st.tuples(
        st.floats(-1e3, 1e3, width=32),
        st.lists(st.tuples(LOGPROBS, LOGPROBS, LOGPROBS, st.integers(0, 100)), min_size=1, max_size=6),
    ).map(lambda drawn: [Token(logp, logp, mu, old, drawn[0], lag) for logp, mu, old, lag in drawn[1]]),
    min_size=1,
    max_size=4,
)
E20 = float(np.exp(20.0))

BOUNDS = {
    "is_reinforce": (5.0, 5.0),
    "cispo": (6.0, 6.0),
    "cispo on rho": (6.0, 6.0),
    "cispo with clip_low": (1.3, 1.3),
    "grpo, dr_grpo": (1.2, E20),
    "dapo": (1.28, E20),
    "gspo": (1.0004, E20),
    "decoupled_ppo": (6.0, 5.0 * E20),
    "decoupled_ppo, interpolated": (6.0, 5.0 * E20),
    "topr": (1.0, 1.0),
}
"""|dJ/dlog pi| <= this · |A|, where A > 0 and where A < 0: PPO's clip bounds no ratio that a negative A would lower"""
PUSHES = [name for name in OBJECTIVES if name != "cross_entropy"]


@pytest.mark.parametrize("name", OBJECTIVES)
@SETTINGS
@given(sequences=ANY_SEQUENCES)
def test_finite_for_any_input(name: str, sequences: list[list[Token]]) -> None:
    terms, slopes = terms_and_gradient(OBJECTIVES[name][0], trained_tokens(sequences, torch.float32))
    assert terms.objective_N.isfinite().all()
    assert np.isfinite(slopes).all()
    assert not (terms.clipped_N & terms.masked_N).any()


@pytest.mark.parametrize("name", BOUNDS)
@SETTINGS
@given(sequences=ANY_SEQUENCES)
def test_no_token_pushes_harder_than_its_paper_allows(name: str, sequences: list[list[Token]]) -> None:
    tokens = trained_tokens(sequences)
    _, slopes = terms_and_gradient(OBJECTIVES[name][0], tokens)
    advantages = tokens.advantages_N.numpy()
    above, below = BOUNDS[name]
    allowed = np.where(advantages > 0, above, below) * np.abs(advantages)
    assert (np.abs(slopes) <= allowed * (1 + 1e-12)).all()


@SETTINGS
@given(sequences=ANY_SEQUENCES)
def test_dppo_moves_no_probability_past_its_threshold(sequences: list[list[Token]]) -> None:
    """Outside the region only the quadratic term is left, and it pulls back."""
    tokens = trained_tokens(sequences)
    terms, slopes = terms_and_gradient(OBJECTIVES["dppo"][0], tokens)
    log_w = (tokens.logprobs_N.detach() - tokens.behaviour_logprobs_N).numpy()
    masked = terms.masked_N.numpy()
    assert (np.abs(slopes[masked]) <= 2e-3 * 20).all()
    assert (slopes[masked] * log_w[masked] <= 0).all()


@pytest.mark.parametrize("name", PUSHES)
@SETTINGS
@given(
    drawn=st.lists(
        st.tuples(st.floats(-3, 3), st.lists(st.floats(-30, 0), min_size=1, max_size=5)), min_size=1, max_size=4
    )
)
def test_on_policy_it_is_reinforce(name: str, drawn: list[tuple[float, list[float]]]) -> None:
    sequences = [[Token(logp, logp, logp, logp, a) for logp in logps] for a, logps in drawn]
    tokens = trained_tokens(sequences)
    terms, slopes = terms_and_gradient(OBJECTIVES[name][0], tokens)
    np.testing.assert_allclose(slopes, tokens.advantages_N.numpy(), rtol=1e-12, atol=0)
    assert not (terms.clipped_N | terms.masked_N).any()


@pytest.mark.parametrize("name", OBJECTIVES)
@SETTINGS
@given(sequences=ANY_SEQUENCES)
def test_sequences_do_not_mix(name: str, sequences: list[list[Token]]) -> None:
    """One micro-batch, or one for each sequence: the same terms, gradients, flags."""
    objective, _ = OBJECTIVES[name]
    together, slopes = terms_and_gradient(objective, trained_tokens(sequences))
    parts = [terms_and_gradient(objective, trained_tokens([sequence])) for sequence in sequences]
    torch.testing.assert_close(
        together.objective_N.detach(), torch.cat([terms.objective_N.detach() for terms, _ in parts]), rtol=1e-12, atol=0
    )
    np.testing.assert_allclose(slopes, np.concatenate([part for _, part in parts]), rtol=1e-12, atol=0)
    assert torch.equal(together.clipped_N, torch.cat([terms.clipped_N for terms, _ in parts]))
    assert torch.equal(together.masked_N, torch.cat([terms.masked_N for terms, _ in parts]))
