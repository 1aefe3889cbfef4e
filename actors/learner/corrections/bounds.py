"""What the constructors of corrections check: bounds on a ratio that is 1 on policy. Pure."""

from __future__ import annotations

import math

from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO

LEAST_RATIO = math.exp(-MAX_ABS_LOG_RATIO)
"""Log-ratios are clamped, so that no ratio lies below."""


def check_around_one(name: str, low: float, high: float) -> None:
    """Raises ValueError where [low, high] would leave out what is on policy."""
    if not 0 <= low < 1 < high:
        raise ValueError(
            f"corrections.{name} needs 0 <= low < 1 < high, got low={low} and high={high}; on-policy tokens have ratio "
            "1 and must be kept"
        )
