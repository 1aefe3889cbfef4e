"""Each objective at the edges of its clip or mask, by hand; and settings that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from twins.comparing import terms_and_gradient, trained_tokens
from twins.tokens import Token

from headrace.actors.learner.objectives import (
    Cispo,
    ClippedRatio,
    DecoupledPpo,
    Dppo,
    Gspo,
    IsReinforce,
    Objective,
    Topr,
)
from headrace.actors.learner.objectives.decoupled_ppo import interpolated


def run(
    objective: Objective, *, w: list[float] | None = None, rho: list[float] | None = None, a: float = 1.0
) -> tuple[list[bool], list[bool], np.ndarray]:
    """One sequence of log pi = −2 → clipped, masked, gradient."""
    num = len(w or rho or [])
    tokens = [
        Token(-2.0, -2.0, -2.0 - math.log((w or [1.0] * num)[t]), -2.0 - math.log((rho or [1.0] * num)[t]), a)
        for t in range(num)
    ]
    terms, slopes = terms_and_gradient(objective, trained_tokens([tokens]))
    return terms.clipped_N.tolist(), terms.masked_N.tolist(), slopes


def test_is_reinforce() -> None:
    clipped, masked, slopes = run(IsReinforce(), w=[0.04, 0.06, 4.0, 7.0, 11.0])
    assert masked == [True, False, False, False, True]
    assert clipped == [False, False, False, True, False]
    np.testing.assert_allclose(slopes, [0.0, 0.06, 4.0, 5.0, 0.0])


def test_cispo_keeps_every_gradient() -> None:
    clipped, masked, slopes = run(Cispo(), w=[1e-3, 5.9, 6.1, 100.0])
    assert clipped == [False, False, True, True]
    assert masked == [False] * 4
    np.testing.assert_allclose(slopes, [1e-3, 5.9, 6.0, 6.0])
    clipped, _, slopes = run(Cispo(clip_low=0.2, clip_high=0.2, ratio="rho"), rho=[0.5, 0.9, 1.5], w=[9.0, 9.0, 9.0])
    assert clipped == [True, False, True]
    np.testing.assert_allclose(slopes, [0.8, 0.9, 1.2])


@pytest.mark.parametrize("objective", [ClippedRatio(clip_high=0.28), DecoupledPpo(clip_high=0.28)])
def test_the_clip_takes_hold_only_where_the_push_goes_on(objective: Objective) -> None:
    if isinstance(objective, DecoupledPpo):  # m = w / rho, made 1 here
        ratios = {"rho": [0.7, 0.9, 1.27, 1.29], "w": [0.7, 0.9, 1.27, 1.29]}
    else:
        ratios = {"rho": [0.7, 0.9, 1.27, 1.29]}
    clipped, _, slopes = run(objective, **ratios, a=1.0)
    assert clipped == [False, False, False, True]
    np.testing.assert_allclose(slopes, [0.7, 0.9, 1.27, 0.0])
    clipped, _, slopes = run(objective, **ratios, a=-1.0)
    assert clipped == [True, False, False, False]
    np.testing.assert_allclose(slopes, [0.0, -0.9, -1.27, -1.29])


def test_gspo_clips_whole_sequences() -> None:
    clipped, _, slopes = run(Gspo(), rho=[2.0, 0.5003])  # mean log ratio 3e-4: within
    assert clipped == [False, False]
    np.testing.assert_allclose(slopes, [1.0003, 1.0003], rtol=1e-6)
    clipped, _, slopes = run(Gspo(), rho=[2.0, 0.5005])  # 5e-4
    assert clipped == [True, True]
    np.testing.assert_array_equal(slopes, [0.0, 0.0])


def test_gspo_weighs_each_token_with_its_own_correction() -> None:
    """A correction that leaves a token out leaves out that token's gradient, and no other's."""
    tokens = trained_tokens([[Token(-2.0, -2.0, -2.0, -2.0, 1.5), Token(-1.0, -1.0, -1.0, -1.0, 1.5)]])
    kept_N = torch.tensor([0.0, 1.0], dtype=torch.float64)
    (Gspo()(tokens).objective_N * kept_N).sum().backward()
    assert tokens.logprobs_N.grad is not None
    assert tokens.logprobs_N.grad.tolist() == [0.0, 1.5]


def test_decoupled_ppo_caps_m() -> None:
    clipped, _, slopes = run(DecoupledPpo(), w=[0.5, 4.0, 7.0])  # rho = 1: m = w
    assert clipped == [False, False, True]
    np.testing.assert_allclose(slopes, [0.5, 4.0, 5.0])


@pytest.mark.parametrize(("lag", "alpha"), [(0, 1.0), (1, 0.0), (2, 0.5), (4, 0.75), (100, 0.99)])
def test_interpolation_is_one_version_behind(lag: int, alpha: float) -> None:
    tokens = trained_tokens([[Token(-1.0, -1.0, -3.0, -99.0, 1.0, lag)]])
    old_N = interpolated(tokens)
    assert old_N.tolist() == pytest.approx([-3.0 + alpha * 2.0])
    assert not old_N.requires_grad


def test_topr_tapers_only_what_was_bad() -> None:
    assert run(Topr(), w=[8.0, 0.5], a=2.0)[2].tolist() == [2.0, 2.0]
    clipped, _, slopes = run(Topr(), w=[0.5, 0.5], a=-2.0)  # the product, 0.25, at each token
    np.testing.assert_allclose(slopes, [-0.5, -0.5])
    assert clipped == [False, False]
    clipped, _, slopes = run(Topr(), w=[8.0, 0.5], a=-2.0)
    np.testing.assert_allclose(slopes, [-2.0, -2.0])
    assert clipped == [True, True]


def test_dppo_measures_probabilities() -> None:
    """A rare token may grow a hundredfold; a frequent one may not gain 0.3."""

    def keeps(pi: float, mu: float, a: float) -> bool:
        token = Token(math.log(pi), math.log(pi), math.log(mu), math.log(mu), a)
        return not Dppo()(trained_tokens([[token]])).masked_N.item()

    assert keeps(0.1, 0.001, 1.0)
    assert not keeps(0.9, 0.6, 1.0)
    assert keeps(0.9, 0.6, -1.0)
    assert not keeps(0.3, 0.6, -1.0)
    assert keeps(0.3, 0.6, 1.0)
    assert keeps(0.9, 0.6, 0.0)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: IsReinforce(mask_below=2.0), "mask_below"),
        (lambda: IsReinforce(clip=0.0), "clip"),
        (lambda: ClippedRatio(clip_low=1.5), r"clip_low .*got 1\.5"),
        (lambda: ClippedRatio(clip_high=-0.1), r"clip_high .*got -0\.1"),
        (lambda: ClippedRatio(clip_high=math.inf), "clip_high"),
        (lambda: ClippedRatio(clip_low=math.nan), "clip_low"),
        (lambda: Gspo(clip_low=-1e-4), "clip_low"),
        (lambda: Cispo(clip_high=-1.0), "clip_high"),
        (lambda: Cispo(clip_low=1.1), "clip_low"),
        (lambda: Cispo(ratio="m"), "w .*or rho"),
        (lambda: DecoupledPpo(weight_cap=0.5), "weight_cap"),
        (lambda: DecoupledPpo(proximal="rollout"), "recomputed or interpolated"),
        (lambda: DecoupledPpo(clip_high=-1.0), "clip_high"),
        (lambda: Dppo(threshold=0.0), "threshold"),
        (lambda: Dppo(drift=-1.0), "drift"),
    ],
)
def test_names_what_is_wrong(make: Callable[[], Objective], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        make()


def test_who_takes_weights() -> None:
    takes = [ClippedRatio(), Gspo(), Cispo(ratio="rho")]
    holds = [IsReinforce(), Cispo(), DecoupledPpo(), Topr(), Dppo()]
    assert all(objective.takes_weights for objective in takes)
    assert not any(objective.takes_weights for objective in holds)
