"""The corrections against slow twins, what holds for any input, what must not mix, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from twins import corrections as twins
from twins.corrections import Token

from headrace.actors.learner.corrections import Geo, Icepop, Mis, Opsm, Tis, Veto
from headrace.actors.learner.objectives import TrainedTokens

PAIRS = [
    (Tis(), twins.tis),
    (Icepop(), twins.icepop),
    (Mis(), twins.mis_token),
    (Mis(level="sequence"), twins.mis_sequence),
    (Veto(), twins.veto),
    (Opsm(), twins.opsm),
    (Opsm(policy="proximal"), lambda sequence: twins.opsm(sequence, policy="proximal")),
    (Geo(), twins.geo),
]
MASKS = [correction for correction, _ in PAIRS if correction.kind == "mask"]
EDGES = {math.log(edge) for edge in (0.5, 2.0, 5.0, 1e-4, 0.999, 1.001)} | {0.5}

LOGPROB = st.floats(-12, 0)
TOKEN = st.builds(Token, LOGPROB, LOGPROB, LOGPROB, st.floats(-3, 3), st.integers(0, 2))
NEAR = st.builds(
    lambda mu, shift, drift, advantage, lag: Token(mu + shift + drift, mu + shift, mu, advantage, lag),
    LOGPROB, st.floats(-0.01, 0.01), st.floats(-1, 0), st.sampled_from([-1.0, 1.0]), st.integers(0, 1),
)  # fmt: skip
SEQUENCES = st.lists(st.lists(st.one_of(TOKEN, NEAR), min_size=1, max_size=5), min_size=1, max_size=4)


def tensors(sequences: list[list[Token]], dtype: torch.dtype = torch.float64) -> TrainedTokens:
    flat = [token for sequence in sequences for token in sequence]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in flat], dtype=dtype)

    return TrainedTokens(
        logprobs_N=column("pi").requires_grad_(),
        behaviour_logprobs_N=column("mu"),
        proximal_logprobs_N=column("old"),
        advantages_N=column("advantage"),
        lags_N=torch.tensor([token.lag for token in flat], dtype=torch.int64),
        sequence_N=torch.tensor([i for i, sequence in enumerate(sequences) for _ in sequence]),
    )


def near_an_edge(sequences: list[list[Token]]) -> bool:
    """Where the order of a sum decides on which side of a bound something falls."""
    seen = []
    for sequence in sequences:
        logs = [t.old - t.mu for t in sequence]
        same = [t.old - t.mu for t in sequence if t.lag == 0]
        seen += [*logs, sum(logs), sum(same) / max(1, len(same)), sum(t.advantage for t in sequence) + 0.5]
        seen += [sum(getattr(t, name) - t.pi for t in sequence) / len(sequence) for name in ("mu", "old")]
    return any(abs(value - edge) < 1e-9 for value in seen for edge in EDGES)


@pytest.mark.parametrize(("correction", "twin"), PAIRS)
@settings(deadline=None)
@given(sequences=SEQUENCES)
def test_equals_the_slow_twin(correction, twin, sequences):
    assume(not near_an_edge(sequences))
    expected = [factor for sequence in sequences for factor in twin(sequence)]
    np.testing.assert_allclose(correction(tensors(sequences)).numpy(), expected, rtol=0, atol=1e-9)


ANY = st.floats(-(2.0**100), 0, width=32)
ANY_TOKEN = st.builds(Token, ANY, ANY, ANY, st.floats(-1024, 1024, width=32), st.integers(0, 99))


@pytest.mark.parametrize("correction", [correction for correction, _ in PAIRS])
@settings(deadline=None)
@given(sequences=st.lists(st.lists(ANY_TOKEN, min_size=1, max_size=4), min_size=1, max_size=3))
def test_is_finite_not_negative_and_has_no_gradient(correction, sequences):
    factors = correction(tensors(sequences, torch.float32))
    assert torch.isfinite(factors).all()
    assert (factors >= 0).all()
    assert not factors.requires_grad
    if correction.kind == "mask":
        assert set(factors.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("correction", [correction for correction, _ in PAIRS])
@settings(deadline=None)
@given(sequences=SEQUENCES)
def test_sequences_do_not_mix(correction, sequences):
    together = correction(tensors(sequences)).tolist()
    alone = [factor for sequence in sequences for factor in correction(tensors([sequence])).tolist()]
    assert together == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize("correction", [correction for correction, _ in PAIRS])
def test_on_policy_everything_counts_once(correction):
    tokens = [[Token(p, p, p, a) for p in (-0.1, -3.0, -9.0)] for a in (-1.0, 1.0)]
    assert correction(tensors(tokens)).tolist() == [1.0] * 6


def logs(*values: float, lag: int = 0, advantage: float = 1.0) -> list[Token]:
    """A sequence with these log m."""
    return [Token(-5.0 + value, -5.0 + value, -5.0, advantage, lag) for value in values]


def test_bounds_belong_to_what_is_kept():
    ratios = [0.49, 0.5, 1.0, 2.0, 2.01, 5.0, 5.01]
    sequence = [[Token(math.log(m), math.log(m), 0.0) for m in ratios]]
    assert (Icepop()(tensors(sequence)) > 0).tolist() == [False, True, True, True, True, True, False]
    assert Mis()(tensors(sequence)).tolist() == [0, 1, 1, 1, 0, 0, 0]


def test_mis_by_sequence_is_the_product():
    """Ten tokens of m = 1.1 are kept one by one and as a geometric mean, not as a product of 2.6."""
    sequence = [logs(*[math.log(1.1)] * 10)]
    assert Mis()(tensors(sequence)).tolist() == [1.0] * 10
    assert Mis(level="sequence")(tensors(sequence)).tolist() == [0.0] * 10


def test_one_impossible_token_vetoes_its_sequence_alone():
    assert Veto()(tensors([logs(0.0, -9.3, 0.0), logs(0.0, -9.1)])).tolist() == [0, 0, 0, 1, 1]


def test_opsm_masks_mistakes_of_a_policy_left_behind():
    """pi has moved away from mu by 0.6 nats a token: masked where A < 0. pi_old = pi: the drift in the step is none."""
    sequences = [logs(-0.6, -0.6, advantage=-1.0), logs(-0.6, advantage=1.0), logs(0.6, advantage=-1.0)]
    assert Opsm()(tensors(sequences)).tolist() == [0, 0, 1, 1]
    assert Opsm(policy="proximal")(tensors(sequences)).tolist() == [1, 1, 1, 1]


def test_geo_looks_at_engine_mismatch_alone():
    """Old tokens do not count; a sequence of old tokens alone is kept; opposite errors cancel."""
    sequences = [logs(0.002), logs(0.9, lag=1), [*logs(0.9, lag=1), *logs(0.0)], logs(0.5, -0.5)]
    assert Geo()(tensors(sequences)).tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Icepop(low=1.0), "corrections.icepop needs 0 <= low < 1 < high"),
        (lambda: Icepop(high=0.9), "corrections.icepop needs"),
        (lambda: Mis(low=-0.1), "corrections.mis needs"),
        (lambda: Mis(low=float("nan")), "corrections.mis needs"),
        (lambda: Mis(level="word"), "corrections.mis.level must be token or sequence, got 'word'"),
        (lambda: Veto(below=1.0), "corrections.veto.below must be in"),
        (lambda: Veto(below=1e-9), "corrections.veto.below must be in"),
        (lambda: Opsm(delta=0.0), "corrections.opsm.delta must be > 0"),
        (lambda: Opsm(delta=float("nan")), "corrections.opsm.delta must be > 0"),
        (lambda: Opsm(policy="mu"), "corrections.opsm.policy must be behaviour or proximal"),
        (lambda: Geo(low=1.0, high=1.0), "corrections.geo needs"),
    ],
)
def test_what_cannot_be_is_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def of_ratio(*ratios: float) -> TrainedTokens:
    """One sequence of tokens whose pi_old / mu are these."""
    return tensors([[Token(-1.0 + math.log(ratio), -1.0 + math.log(ratio), -1.0, 1.0, 0) for ratio in ratios]])


def test_a_lower_bound_of_0_leaves_nothing_out_below() -> None:
    assert Mis(low=0.0)(of_ratio(1e-6, 1.0, 3.0)).tolist() == [1.0, 1.0, 0.0]
    assert Mis(low=0.5)(of_ratio(1e-6, 1.0, 3.0)).tolist() == [0.0, 1.0, 0.0]


def test_a_cap_of_1_is_the_least() -> None:
    assert Tis(cap=1.0)(of_ratio(0.5, 1.5)).tolist() == pytest.approx([0.5, 1.0])
    assert Tis(cap=1.5)(of_ratio(0.5, 3.0)).tolist() == pytest.approx([0.5, 1.5])
    with pytest.raises(ValueError, match=r"tis\.cap must be >= 1, got 0\.99"):
        Tis(cap=0.99)
