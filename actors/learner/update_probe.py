"""The probe that goes with every update: the learner's log-probs of a fixed text, computed from the very weights that
are staged. Whoever loads the version computes the same text and compares (actors/generator): bytes may be right and
still be loaded wrongly. Knows neither model nor threads; sends nothing.

It needs no sampling and no answer, so it holds nobody up; probe.py beside it compares what engines *sample*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.transport.weights import Probe

BOUNDS = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 0.03, "float16": 0.03}
"""mean |Δ log-prob| that kernels and precision alone explain, by the coarsest precision on either side"""
_SEED = 20_26


def ordinary_tokens(vocab_size: int, special_ids: Sequence[int]) -> np.ndarray:
    """int32[N], ascending."""
    return np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(special_ids, dtype=np.int32))


class UpdateProbe:
    """num_tokens: of the text, drawn once from the ordinary tokens: where a half-precision engine is at its least
    precise. every_updates: 1 probes each. dtype: what engines compute in. bound: of the mean absolute difference; None:
    by precision (see BOUNDS)."""

    def __init__(
        self, *, num_tokens: int = 32, every_updates: int = 1, dtype: str = "float32", bound: float | None = None
    ) -> None:
        if num_tokens < 2:
            raise ValueError(f"update_probe.num_tokens must be >= 2, got {num_tokens}: the first one is not predicted")
        if every_updates < 1:
            raise ValueError(f"update_probe.every_updates must be >= 1, got {every_updates}")
        if bound is not None and not bound > 0:
            raise ValueError(f"update_probe.bound must be > 0 or null, got {bound}")
        self._num_tokens = num_tokens
        self._every_updates = every_updates
        self._dtype = dtype
        self._bound = bound

    def bound(self, *precisions: str | None) -> float:
        """`precisions`: further ones on the way (autocast, what the weights travel in); unknown names are exact."""
        if self._bound is not None:
            return self._bound
        return max(BOUNDS.get(name or "float32", BOUNDS["float32"]) for name in (self._dtype, *precisions))

    def text(self, vocab_size: int, special_ids: Sequence[int] = ()) -> np.ndarray:
        """int32[num_tokens], the same at every call."""
        return np.random.default_rng(_SEED).choice(ordinary_tokens(vocab_size, special_ids), self._num_tokens)

    def is_due(self, version: int) -> bool:
        return version % self._every_updates == 0

    @staticmethod
    def of(token_ids: np.ndarray, logprobs: np.ndarray, bound: float) -> Probe:
        """token_ids: int32[N]. logprobs: float32[N − 1], of all tokens but the first."""
        return Probe(tuple(token_ids.tolist()), tuple(logprobs.tolist()), bound)
