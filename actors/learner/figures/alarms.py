"""What is wrong with the data of a step, by bounds on its figures: said once when it begins and once when it is over.

Looks at figures alone and never acts on them. The `rl` stage feeds it with each step; it gives `alarm/NAME`, 0 or 1.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

logger = logging.getLogger(__name__)

NUM_FIRST_STEPS = 100
"""Their median is what the mismatch KL is compared with."""
MISMATCH_FACTOR = 3.0
MISMATCH_FIGURE = "logprob_gap/same_version_kl"


@dataclass(frozen=True, slots=True)
class Bound:
    """An alarm is raised where the figure is on the wrong side of `bound`; on it is right. advice: what to look at."""

    figure: str
    bound: float
    is_least: bool
    advice: str


BOUNDS: Mapping[str, Bound] = {
    "ess": Bound("ess/token", 0.5, True, "few tokens carry the update: lower staleness.max_lag_versions or learner.lr"),
    "truncated": Bound("intake/truncated_fraction", 0.05, False, "raise sampling.max_tokens or environment.max_turns"),
    "errored": Bound("intake/errored_fraction", 0.05, False, "see the warnings of environments and graders"),
    "masked": Bound("weight/masked_fraction", 0.5, False, "most tokens train nothing: see correction/*_left_out"),
}
MISMATCH = "mismatch_kl"
NAMES = (*BOUNDS, MISMATCH)


class Alarms:
    """first_mismatch: the mismatch KLs of the first steps that had one, which this adds to, up to NUM_FIRST_STEPS: kept
    by the caller, so that a resumed run compares with its own beginning."""

    def __init__(self, first_mismatch: list[float]) -> None:
        self._first_mismatch = first_mismatch
        self._raised = dict.fromkeys(NAMES, False)

    def update(self, step: int, figures: Mapping[str, float]) -> dict[str, float]:
        """`alarm/NAME` → 0 or 1. A figure that the step does not have leaves its alarm as it was."""
        for name, bound in self._bounds(figures).items():
            value = figures.get(bound.figure)
            if value is None:
                continue
            wrong = not (value >= bound.bound if bound.is_least else value <= bound.bound)  # NaN is wrong
            if wrong != self._raised[name]:
                self._raised[name] = wrong
                self._say(step, name, bound, value)
        return {f"alarm/{name}": float(raised) for name, raised in self._raised.items()}

    def _bounds(self, figures: Mapping[str, float]) -> dict[str, Bound]:
        bounds = dict(BOUNDS)
        if len(self._first_mismatch) < NUM_FIRST_STEPS:
            if MISMATCH_FIGURE in figures:
                self._first_mismatch.append(figures[MISMATCH_FIGURE])
        else:
            limit = MISMATCH_FACTOR * statistics.median(self._first_mismatch)
            advice = "the engine's log-probs leave the learner's: see the update probe, dtypes and kernels"
            bounds[MISMATCH] = Bound(MISMATCH_FIGURE, limit, False, advice)
        return bounds

    def _say(self, step: int, name: str, bound: Bound, value: float) -> None:
        side = "at least" if bound.is_least else "at most"
        if self._raised[name]:
            logger.warning(
                "alarm %s from step %d: %s is %.4g, should be %s %.4g; %s",
                name, step, bound.figure, value, side, bound.bound, bound.advice,
            )  # fmt: skip
        else:
            logger.warning("alarm %s is over at step %d: %s is %.4g", name, step, bound.figure, value)
