"""From rewards and values of single tokens to what each token is credited with. Pure NumPy."""

from __future__ import annotations

import numpy as np


def returns_to_go(rewards_T: np.ndarray) -> np.ndarray:
    """float[T] of one sequence's trained tokens → float[T], the sum from each token to the end."""
    returns_T: np.ndarray = np.cumsum(rewards_T[::-1])[::-1]
    return returns_T
