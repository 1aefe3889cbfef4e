"""Importance ratios by token, and means of a sequence's tokens: what objectives and corrections are made of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.actors.learner.objectives.protocol import MAX_ABS_LOG_RATIO

if TYPE_CHECKING:
    import torch


def log_ratio(logprobs_N: torch.Tensor, below_N: torch.Tensor) -> torch.Tensor:
    """log(a / b), float32[N], clamped to ±MAX_ABS_LOG_RATIO."""
    return (logprobs_N - below_N).clamp(-MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO)


def sequence_sums(values_N: torch.Tensor, sequence_N: torch.Tensor) -> torch.Tensor:
    """float32[S]: the sum over each sequence's tokens."""
    return values_N.new_zeros(int(sequence_N.max()) + 1).index_add(0, sequence_N, values_N)


def sequence_means(values_N: torch.Tensor, sequence_N: torch.Tensor) -> torch.Tensor:
    """float32[S]: the mean of each sequence's tokens."""
    sums_S = sequence_sums(values_N, sequence_N)
    return sums_S / sequence_sums(values_N.new_ones(len(values_N)), sequence_N)


def spread_means(values_N: torch.Tensor, sequence_N: torch.Tensor) -> torch.Tensor:
    """float32[N]: at each token the mean of its sequence."""
    return sequence_means(values_N, sequence_N)[sequence_N]
