"""Where TRL publishes the same loss, both are given the same numbers: TRL's own code as it is installed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from twins import drawing
from twins.trl_losses import COUNTERPARTS, trl_differences

from headrace.actors.learner.objectives import ClippedRatio

BOUND = 1e-9  # in float64; TRL computes in float32 what it trains with


@pytest.mark.filterwarnings("ignore::UserWarning")  # TRL's own, of the version of vLLM
@pytest.mark.parametrize("name", list(COUNTERPARTS))
def test_the_loss_and_its_gradient_are_trls(name: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        value, gradient = trl_differences(COUNTERPARTS[name], drawing.sequences(rng, spreads=drawing.UNCLAMPED))
        assert value < BOUND
        assert gradient < BOUND


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_another_clip_is_found_out() -> None:
    wrong = replace(COUNTERPARTS["grpo"], objective=ClippedRatio(clip_high=0.21))
    rng = np.random.default_rng(1)
    drawn = [drawing.sequences(rng, spreads=(0.3,)) for _ in range(20)]
    assert max(trl_differences(wrong, sequences)[1] for sequences in drawn) > 1e-3
    assert max(trl_differences(COUNTERPARTS["grpo"], sequences)[1] for sequences in drawn) < BOUND
