"""The key-value cache of the torch engine: one row of static storage a sequence, for any transformers causal LM.

Rows 0 … n-1 are the sequences being decoded, without gaps, so that a step reads views and copies nothing. Storage grows
by doubling up to the context. It never decides who joins or leaves: the decoder does.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_FIRST_CAPACITY = 64


class SlotCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """Give it to `model(past_key_values=…)` between `begin_prefill` or `begin_decode` and the next such call.

    max_rows: sequences at most. max_length: tokens of a sequence at most.
    """

    def __init__(self, *, num_layers: int, max_rows: int, max_length: int) -> None:
        self.max_rows = max_rows
        self.max_length = max_length
        self.first_row = 0
        self.copies = torch.empty(0, dtype=torch.long)
        self.lengths = torch.empty(0, dtype=torch.long)
        self.rows = torch.arange(max_rows)
        self.visible = 0
        super().__init__(layers=[_SlotLayer(self) for _ in range(num_layers)])

    def begin_prefill(self, *, first_row: int, copies: torch.Tensor, prompt_length: int) -> None:
        """The next forward holds U distinct prompts from position 0; row `first_row + i` gets those of prompt
        `copies[i]` (int64[m])."""
        self.first_row, self.copies, self.visible = first_row, copies, prompt_length
        self.lengths = self.lengths[:0]

    def begin_decode(self, lengths: torch.Tensor) -> None:
        """The next forward holds one token for each of the n rows, at position `lengths` (int64[n])."""
        self.lengths = lengths
        self.visible = int(lengths.max()) + 1

    def move(self, source: int, target: int) -> None:
        """Row `target` becomes a copy of row `source`."""
        with torch.inference_mode():  # the storage was made in it
            for layer in self.layers:
                layer.keys[target].copy_(layer.keys[source])
                layer.values[target].copy_(layer.values[source])


def check_attention(config: Any, max_length: int) -> None:
    """Raise ValueError for a model whose layers keep something else than all keys and values of a sequence."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    other = kinds - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(f"the torch engine serves attention layers only, the model has {sorted(other)}; use vllm")
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds and window is not None and max_length > window:
        raise ValueError(f"max_model_len must be <= {window}, the model's sliding window, got {max_length}")


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """keys, values: [rows, heads, capacity, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor
    is_initialized: bool

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self._cache = cache

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[b, heads, q, head_dim] of this step in; what the step attends to out."""
        cache = self._cache
        num_decoding = len(cache.lengths)
        rows = num_decoding or cache.first_row + len(cache.copies)
        self._reserve(rows, cache.visible, key_states, value_states)
        if num_decoding:
            at = cache.rows[:num_decoding]
            self.keys[at, :, cache.lengths] = key_states[:, :, 0]
            self.values[at, :, cache.lengths] = value_states[:, :, 0]
            return self.keys[:num_decoding, :, : cache.visible], self.values[:num_decoding, :, : cache.visible]
        self.keys[cache.first_row : rows, :, : cache.visible] = key_states[cache.copies]
        self.values[cache.first_row : rows, :, : cache.visible] = value_states[cache.copies]
        return key_states, value_states

    def _reserve(self, rows: int, length: int, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        if self.is_initialized and rows <= self.keys.shape[0] and length <= self.keys.shape[2]:
            return
        had_rows, had_length = (self.keys.shape[0], self.keys.shape[2]) if self.is_initialized else (0, 0)
        new_rows = min(max(rows, 2 * had_rows if rows > had_rows else had_rows), self._cache.max_rows)
        grown = max(_FIRST_CAPACITY, length, 2 * had_length if length > had_length else had_length)
        new_length = min(grown, self._cache.max_length)
        keys, values = (
            torch.zeros(new_rows, states.shape[1], new_length, states.shape[3], dtype=states.dtype)
            for states in (key_states, value_states)
        )
        if self.is_initialized:
            keys[:had_rows, :, :had_length] = self.keys
            values[:had_rows, :, :had_length] = self.values
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self._reserve(1, 1, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.visible, 0

    def get_seq_length(self) -> int:
        return self._cache.visible

    def get_max_length(self) -> int:
        return self._cache.max_length
