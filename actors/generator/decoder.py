"""Continuous batching over a transformers causal LM: prefill what waits, decode one token for all, drop the finished.

A synchronous object that one thread drives step by step; it knows nothing of that thread, of asyncio or of weights'
transport. Between two steps a caller may change the model's weights: the key-value cache is kept, until `recompute`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from headrace.actors.generator.sampling import sample
from headrace.actors.generator.slot_cache import SlotCache, check_attention
from headrace.actors.session import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Sequence:
    """One request in the decoder, and what was sampled for it so far. `tag` is the caller's."""

    prompt: list[int]
    sampling: Sampling
    tag: object = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    uniforms: np.ndarray = field(init=False)
    """float64[max_tokens]: all the randomness of this request, from its own seed."""
    stops: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.uniforms = np.random.default_rng(self.sampling.seed).random(self.sampling.max_tokens)
        self.stops = frozenset(self.sampling.stop_token_ids)

    def append(self, token: int, logprob: float, version: int) -> None:
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.stops:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.sampling.max_tokens:
            self.finish_reason = "length"


class Decoder:
    """`add` any time, `step` while `busy`. Waiting sequences are bounded by the caller.

    max_batch: sequences decoded together. max_length: tokens of one sequence, prompt included.
    max_prefill_tokens: padded prompt tokens of one prefill (memory); a longer prompt is prefilled alone.
    """

    def __init__(
        self, model: PreTrainedModel, *, max_batch: int, max_length: int, max_prefill_tokens: int = 4096
    ) -> None:
        self._model = model
        self._dtype = model.dtype
        self._max_batch = max_batch
        self._max_prefill_tokens = max_prefill_tokens
        config = model.config.get_text_config()
        check_attention(config, max_length)
        self._cache = SlotCache(num_layers=config.num_hidden_layers, max_rows=max_batch, max_length=max_length)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._lengths: list[int] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_sequences(self) -> int:
        return len(self._waiting) + len(self._running)

    def add(self, sequence: Sequence) -> None:
        self._waiting.append(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Forget a sequence that nobody waits for any more. Unknown ones are ignored."""
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._leave(self._running.index(sequence))

    def step(self, version: int) -> list[Sequence]:
        """Prefill what fits, or else decode one token of everybody. Returns those that finished."""
        with torch.inference_mode():
            joined = self._prefill(version)
            finished = self._remove_finished() if joined else []
            if self._running and not joined:
                self._decode(version)
                finished += self._remove_finished()
        return finished

    def recompute(self) -> None:
        """The keys and values of everybody who runs, anew by the weights of now. What was sampled stays."""
        held = [(s.prompt + s.token_ids)[:length] for s, length in zip(self._running, self._lengths, strict=True)]
        row = 0
        with torch.inference_mode():
            while row < len(held):
                count, longest = 1, len(held[row])
                for tokens in held[row + 1 :]:
                    longest = max(longest, len(tokens))
                    if longest * (count + 1) > self._max_prefill_tokens:
                        break
                    count += 1
                self._fill(row, held[row : row + count], torch.arange(count), torch.tensor([0]))
                row += count

    def _prefill(self, version: int) -> bool:
        batch = self._take_waiting()
        if not batch:
            return False
        distinct: dict[tuple[int, ...], int] = {}
        copies = torch.tensor([distinct.setdefault(tuple(s.prompt), len(distinct)) for s in batch])
        ends = [len(prompt) - 1 for prompt in distinct]
        positions = sorted(set(ends))
        which = torch.tensor([positions.index(end) for end in ends])
        logits = self._fill(len(self._running), list(distinct), copies, torch.tensor(positions))
        first = logits[torch.arange(len(distinct)), which][copies]
        self._running += batch
        self._lengths += [len(sequence.prompt) for sequence in batch]
        self._sample(batch, first, version)
        return True

    def _fill(
        self, first_row: int, texts: list[tuple[int, ...]] | list[list[int]], copies: torch.Tensor, keep: torch.Tensor
    ) -> torch.Tensor:
        """Rows from `first_row` get the keys and values of `texts[copies[i]]`. Logits [texts, keep, V] at the positions
        `keep` of each."""
        longest = max(map(len, texts))
        tokens = torch.tensor([[*text, *([0] * (longest - len(text)))] for text in texts])
        self._cache.begin_prefill(first_row=first_row, copies=copies, prompt_length=longest)
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()[None, None]
        return self._forward(tokens, causal, torch.arange(longest).expand(len(texts), -1), keep)

    def _take_waiting(self) -> list[Sequence]:
        batch: list[Sequence] = []
        prompts: set[tuple[int, ...]] = set()
        longest = 0
        while self._waiting and len(self._running) + len(batch) < self._max_batch:
            prompt = tuple(self._waiting[0].prompt)
            longest = max(longest, len(prompt))
            if batch and longest * len(prompts | {prompt}) > self._max_prefill_tokens:
                break
            prompts.add(prompt)
            batch.append(self._waiting.popleft())
        return batch

    def _decode(self, version: int) -> None:
        running = self._running
        lengths = torch.tensor(self._lengths)
        self._cache.begin_decode(lengths)
        seen = (torch.arange(self._cache.visible) <= lengths[:, None])[:, None, None]
        tokens = torch.tensor([[sequence.token_ids[-1]] for sequence in running])
        logits = self._forward(tokens, seen, lengths[:, None], 1)[:, -1]
        self._lengths = [length + 1 for length in self._lengths]
        self._sample(running, logits, version)

    def _forward(
        self, tokens: torch.Tensor, attend: torch.Tensor, positions: torch.Tensor, keep: int | torch.Tensor
    ) -> torch.Tensor:
        mask = torch.zeros(attend.shape, dtype=self._dtype).masked_fill_(~attend, torch.finfo(self._dtype).min)
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits
        return logits

    def _sample(self, sequences: list[Sequence], logits: torch.Tensor, version: int) -> None:
        temperature = torch.tensor([s.sampling.temperature for s in sequences])
        uniform = torch.tensor([s.uniforms[len(s.token_ids)] for s in sequences], dtype=torch.float64)
        cut = any(s.sampling.top_p < 1 for s in sequences)
        top_p = torch.tensor([s.sampling.top_p for s in sequences]) if cut else None
        tokens, logprobs = sample(logits, temperature, top_p, uniform)
        for sequence, token, logprob in zip(sequences, tokens.tolist(), logprobs.tolist(), strict=True):
            sequence.append(token, logprob, version)

    def _remove_finished(self) -> list[Sequence]:
        rows = [row for row, sequence in enumerate(self._running) if sequence.finish_reason]
        finished = [self._running[row] for row in rows]
        for row in reversed(rows):
            self._leave(row)
        return finished

    def _leave(self, row: int) -> None:
        """The last row moves into the hole, so that running rows have no gaps."""
        last = len(self._running) - 1
        if row != last:
            self._cache.move(last, row)
            self._running[row], self._lengths[row] = self._running[last], self._lengths[last]
        self._running.pop()
        self._lengths.pop()
