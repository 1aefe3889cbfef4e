"""Soft overlong punishment: what nears the limit loses reward step by step, so that a cut answer is no surprise.

    0 up to L_max − L_c trained tokens;  (|y| − (L_max − L_c)) / L_c in the margin;  1 above L_max

DAPO, arXiv 2503.14476 eq. 13, with the sign turned: penalties are taken off. There L_max = 20480 and L_c = 4096.
"""

from __future__ import annotations

from headrace.actors.session import Trajectory

MARGIN_SHARE = 5
"""L_max / L_c in the paper."""


class Overlong:
    """max_tokens: L_max, trained tokens of a session, all its turns together. margin_tokens: L_c; None: a fifth of it,
    as in the paper."""

    def __init__(self, *, max_tokens: int, margin_tokens: int | None = None) -> None:
        if max_tokens < 1:
            raise ValueError(f"penalties.overlong.max_tokens must be >= 1, got {max_tokens}")
        if margin_tokens is None:
            margin_tokens = max(1, max_tokens // MARGIN_SHARE)
        if not 1 <= margin_tokens <= max_tokens:
            raise ValueError(
                f"penalties.overlong.margin_tokens must be in [1, max_tokens={max_tokens}], got {margin_tokens}; null "
                "is a fifth"
            )
        self._max_tokens = max_tokens
        self._margin_tokens = margin_tokens

    def __call__(self, trajectory: Trajectory) -> float:
        return overlong(trajectory.num_trained_tokens, self._max_tokens, self._margin_tokens)


def overlong(num_tokens: int, max_tokens: int, margin_tokens: int) -> float:
    """In [0, 1]."""
    over = num_tokens - (max_tokens - margin_tokens)
    return min(1.0, max(0.0, over / margin_tokens))
