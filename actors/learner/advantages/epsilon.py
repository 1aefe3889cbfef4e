"""The epsilon of rules that divide by a standard deviation."""

from __future__ import annotations


def check_epsilon(epsilon: float) -> float:
    """Raises ValueError where equal rewards would be divided by zero."""
    if not epsilon > 0:
        raise ValueError(f"advantage.epsilon must be > 0, got {epsilon}; 1e-6 is the default")
    return epsilon
