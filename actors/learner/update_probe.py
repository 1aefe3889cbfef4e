"""The probe that goes with every update: the learner's log-probs of a fixed text, computed from the very weights that
are staged. Whoever loads the version computes the same text and compares (actors/generator): bytes may be right and
still be loaded wrongly. Knows neither model nor threads; sends nothing.

What a difference may be depends on the precision, and in bfloat16 on the model: large logits are rounded coarsely. So
the learner computes the text in both precisions now and then, and allows several times what lies between.

It needs no sampling and no answer, so it holds nobody up; probe.py beside it compares what engines *sample*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headrace.transport.weights import Probe

BOUNDS = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 0.03, "float16": 0.03}
"""mean |Δ log-prob| that kernels and precision alone explain, by the coarsest precision on either side"""
EXPLAINED_TIMES = 3.0
"""An engine in bfloat16 rounds more than layers under autocast do: SmolLM2 by 0.036 to 0.074 beside 0.042."""
EXPLAIN_EVERY = 32
_HALF = "bfloat16"
_SEED = 20_26


def ordinary_tokens(vocab_size: int, special_ids: Sequence[int]) -> np.ndarray:
    """int32[N], ascending."""
    return np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.asarray(special_ids, dtype=np.int32))


class UpdateProbe:
    """num_tokens: of the text, drawn once from the ordinary tokens: where a half-precision engine is at its least
    precise. every_updates: 1 probes each. dtype: what engines compute in. bound: of the mean absolute difference; None:
    by precision (see BOUNDS), in bfloat16 at least EXPLAINED_TIMES what this precision alone does to the model."""

    def __init__(
        self, *, num_tokens: int = 32, every_updates: int = 1, dtype: str = "float32", bound: float | None = None
    ) -> None:
        if num_tokens < 2:
            raise ValueError(f"update_probe.num_tokens must be >= 2, got {num_tokens}: the first one is not predicted")
        if every_updates < 1:
            raise ValueError(f"update_probe.every_updates must be >= 1, got {every_updates}")
        allowed = (*BOUNDS, "auto")
        if dtype not in allowed:
            raise ValueError(f"update_probe.dtype must be one of {', '.join(allowed)}, got {dtype!r}")
        if bound is not None and not bound > 0:
            raise ValueError(f"update_probe.bound must be > 0 or null, got {bound}")
        self._num_tokens = num_tokens
        self._every_updates = every_updates
        self._dtype = dtype
        self._bound = bound
        self._explained: float | None = None

    def bound(self, *precisions: str | None) -> float:
        """`precisions`: further ones on the way (autocast, what the weights travel in); unknown names are exact."""
        if self._bound is not None:
            return self._bound
        by_name = max(BOUNDS.get(name or "float32", BOUNDS["float32"]) for name in (self._dtype, *precisions))
        return max(by_name, EXPLAINED_TIMES * (self._explained or 0.0))

    def autocasts(self, version: int, autocast: str, travel_dtype: str | None) -> tuple[str, ...]:
        """What `of` needs the text computed in: the learner's own `autocast`, and where the bound is to be found anew
        "none" and "bfloat16" too. Empty where this version is not probed."""
        if version % self._every_updates:
            return ()
        half = _HALF in (self._dtype, autocast, travel_dtype)
        is_first = self._explained is None
        if self._bound is None and half and (is_first or version % (EXPLAIN_EVERY * self._every_updates) == 0):
            return (autocast, *(name for name in ("none", _HALF) if name != autocast))
        return (autocast,)

    def text(self, vocab_size: int, special_ids: Sequence[int] = ()) -> np.ndarray:
        """int32[num_tokens], the same at every call."""
        return np.random.default_rng(_SEED).choice(ordinary_tokens(vocab_size, special_ids), self._num_tokens)

    def of(
        self, token_ids: np.ndarray, logprobs: Mapping[str, np.ndarray], autocast: str, travel_dtype: str | None
    ) -> Probe:
        """token_ids: int32[N]. logprobs: by autocast, as `autocasts` asked for them: float32[N − 1], of all tokens but
        the first."""
        if len(logprobs) > 1:
            self._explained = float(np.abs(logprobs["none"] - logprobs[_HALF]).mean())
        bound = self.bound(autocast, travel_dtype)
        return Probe(tuple(token_ids.tolist()), tuple(logprobs[autocast].tolist()), bound)
