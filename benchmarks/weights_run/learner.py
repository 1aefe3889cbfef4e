"""A learner that measures its own publications: the real one, with another run than `pretrain` and `rl`.

    updates under load      `in_flight` requests keep the engine decoding; the learner does nothing but publish
    steps                   real optimizer steps, every other one with an update on its way; the engine idle

After each pair of steps, a memcpy of as many bytes as staging reads, by the same thread. Everything else is the
system's: sender, publisher, parameter server, generators. Writes `learner.json` to the run folder; the generators'
phases are in metrics.jsonl.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.actors.learner.actor import Learner
from headrace.actors.learner.sequence import TrainSequence, document_sequence
from headrace.actors.messages import Completion, Generate, RunFinished
from headrace.actors.session import Sampling
from headrace.transport import TransportError

logger = logging.getLogger(__name__)

SUPERVISOR = "supervisor/0"
REQUEST_TIMEOUT_S = 600.0
PROMPT_TOKENS = 8
COPY_BYTES = 512 << 20
"""with as much to copy to, more than the caches of today's servers (480 MiB) hold"""


class MeasuringLearner(Learner):
    """in_flight: requests at once, of `max_tokens` each. num_updates: under load, after one that warms up. num_steps:
    pairs of steps, one with an update and one without. sequences, sequence_tokens: of one step."""

    def __init__(
        self,
        *,
        out: str,
        in_flight: int,
        max_tokens: int,
        num_updates: int,
        num_steps: int,
        sequences: int = 8,
        sequence_tokens: int = 64,
        **learner: Any,
    ) -> None:
        super().__init__(**learner)
        self._out = Path(out)
        self._in_flight = in_flight
        self._max_tokens = max_tokens
        self._num_updates = num_updates
        self._num_steps = num_steps
        self._shape = (sequences, sequence_tokens)
        self._token_s: list[float] = []

    async def _run(self, bench: Any) -> None:
        await self._update(0)
        rng = np.random.default_rng(0)
        load = [asyncio.create_task(self._ask_on(bench.policy.vocab_size, number)) for number in range(self._in_flight)]
        while len(self._token_s) < self._in_flight:  # every place is taken, every kernel warm
            await asyncio.sleep(0.1)
            for task in load:
                if task.done():
                    task.result()
        for number in range(1, self._num_updates + 1):
            await self._update(number)
            await asyncio.sleep(0.2)  # between two updates the engine decodes
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
        figures: dict[str, Any] = {"under_load_updates": self._num_updates, "token_s": statistics.median(self._token_s)}
        sequences = [
            document_sequence(rng.integers(3, bench.policy.vocab_size, self._shape[1]).astype(np.int32))
            for _ in range(self._shape[0])
        ]
        figures |= await self._steps(bench, sequences, self._num_updates + 1)
        self._out.write_text(json.dumps(figures))
        await self.context.ask(SUPERVISOR, RunFinished("measured"), timeout_s=60.0)

    async def _update(self, step: int) -> None:
        await self._publisher.wait_served(await self._publisher.publish(step))
        logger.info("update %d of %d", step, self._num_updates)

    async def _steps(self, bench: Any, sequences: list[TrainSequence], first: int) -> dict[str, Any]:
        copy = await bench.run("prepare", PlainCopy, bench.tensors())
        with_update, without, blocked, copies_s = [], [], [], []
        await bench.run("train", bench.trainer.step, sequences, 1e-6)
        for number in range(first, first + self._num_steps):
            started = time.perf_counter()
            assert await self._publisher.publish_if_due(number), "no buffer was free"
            blocked.append(time.perf_counter() - started)
            await bench.run("train", bench.trainer.step, sequences, 1e-6)
            with_update.append(time.perf_counter() - started)
            await self._publisher.wait_served(self._publisher.version)
            await asyncio.sleep(0.5)  # what the update left behind is no part of the next step
            started = time.perf_counter()
            await bench.run("train", bench.trainer.step, sequences, 1e-6)
            without.append(time.perf_counter() - started)
            copies_s.append(await bench.run("memcpy", copy.seconds))
            logger.info("steps %d of %d: %.2f s with an update, %.2f without", number - first + 1, self._num_steps,
                        with_update[-1], without[-1])  # fmt: skip
        steps = {"blocked_s": blocked, "step_with_s": with_update, "step_without_s": without}
        return steps | {"memcpy_s": statistics.median(copies_s), "read_bytes": copy.num_bytes}

    async def _ask_on(self, vocab_size: int, number: int) -> None:
        group = self.context.group("generator")
        rng = np.random.default_rng(number)
        for turn in range(1_000_000):
            prompt = rng.integers(3, min(vocab_size, 1000), PROMPT_TOKENS).astype(np.int32)
            sampling = Sampling(temperature=1.0, max_tokens=self._max_tokens, seed=number, stop_token_ids=())
            request = Generate(f"load-{number}-{turn}", prompt, sampling)
            started = time.perf_counter()
            try:
                completion: Completion = await group.ask(request, timeout_s=REQUEST_TIMEOUT_S)
            except TransportError as error:
                logger.warning("load: %s", error)
                await asyncio.sleep(1.0)
                continue
            self._token_s.append((time.perf_counter() - started) / max(1, len(completion.token_ids)))


class PlainCopy:
    """A plain copy of as many bytes as staging reads (`num_bytes`), by the threads of the learner, in pieces that no
    cache holds with what they are copied to, into memory that was touched before."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        unique = {tensor.data_ptr(): tensor for tensor in tensors.values() if tensor.numel()}.values()
        self.num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in unique)
        self._source = torch.ones(min(self.num_bytes, COPY_BYTES), dtype=torch.uint8)
        self._target = torch.zeros_like(self._source)

    def seconds(self) -> float:
        started = time.perf_counter()
        for start in range(0, self.num_bytes, COPY_BYTES):
            size = min(COPY_BYTES, self.num_bytes - start)
            self._target[:size].copy_(self._source[:size])
        return time.perf_counter() - started
