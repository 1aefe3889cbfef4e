"""A simulated engine of continuous batching: slots that decode at one speed, weights that arrive between two tokens.

The model: a decode step lasts `token_s` whatever runs, so that each running sequence gets 1 / token_s tokens per second
and the engine at most slots / token_s. What finds no slot waits, first come first served. A commit pauses decoding for
`pause_s`. With `in_flight` false the engine takes weights as engines without updates in flight do: it lets every
running sequence end, starts none meanwhile, then loads (vLLM's `pause(mode="wait")`). Headrace itself has no such
setting; the mode shows what updates in flight are worth.

It obeys the Engine protocol; time is the event loop's. Busy slots go to a file in `record` when it is closed.
"""

from __future__ import annotations

import asyncio
import bisect
import json
from collections import deque
from pathlib import Path

import numpy as np

from async_run.lengths import Lengths
from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.limits import check_request
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import Manifest, WeightsMismatch

WORD, STOP = 3, 5
"""of the tokenizer that `cell.py` writes"""


class SlotEngine:
    """`lengths`: keywords of Lengths; a session's length is its seed's. `record`: a folder, where each engine writes
    its busy slots: [[time_s, slots busy from then on], …]."""

    def __init__(
        self,
        *,
        lengths: dict[str, float],
        slots: int,
        token_s: float,
        context_tokens: int,
        record: str,
        in_flight: bool = True,
        pause_s: float = 0.0,
    ) -> None:
        self._lengths = Lengths(**lengths)  # type: ignore[arg-type]
        self._slots = slots
        self._token_s = token_s
        self._context_tokens = context_tokens
        self._record = Path(record)
        self._in_flight = in_flight
        self._pause_s = pause_s
        self._version = 0
        self._staged: int | None = None
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._draining: asyncio.Future[None] | None = None
        self._paused_s = 0.0
        self._paused_since_s: float | None = None
        self._commits_s: list[float] = []
        self._versions: list[int] = [0]
        self._busy: list[tuple[float, int]] = []
        self._alive = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_running(self) -> int:
        return self._running

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alive = True
        self._note()

    async def generate(self, request: Generate) -> Completion:
        if not self._alive:
            raise EngineDied("the simulated engine is closed")
        check_request(request, self._context_tokens)
        await self._take_slot()
        try:
            begin_s = self._decoding_s()
            limit = request.sampling.max_tokens
            wanted = self._lengths.of_seed(request.sampling.seed or 0)
            num_tokens = min(wanted, limit)
            await self._decode_until(begin_s + num_tokens * self._token_s)
            times_s = begin_s + self._token_s * np.arange(1, num_tokens + 1)
        finally:
            self._running -= 1
            self._note()
            self._let_in()
        token_ids = np.full(num_tokens, WORD, dtype=np.int32)
        token_ids[-1] = STOP if wanted <= limit else WORD
        return Completion(
            token_ids=token_ids,
            logprobs=np.full(num_tokens, -0.5, dtype=np.float32),
            versions=self._versions_at(times_s),
            finish_reason="stop" if wanted <= limit else "length",
        )

    # --- slots ------------------------------------------------------------------------------------------------------

    async def _take_slot(self) -> None:
        if self._running >= self._slots or self._queue or self._draining is not None:
            turn = self._loop.create_future()
            self._queue.append(turn)
            try:
                await turn  # `_let_in` has counted this one
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._running -= 1
                    self._let_in()
                raise
        else:
            self._running += 1
            self._note()

    def _let_in(self) -> None:
        if self._draining is not None:
            if not self._running and not self._draining.done():
                self._draining.set_result(None)
            return
        while self._queue and self._running < self._slots:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                self._running += 1
                self._note()

    def _note(self) -> None:
        self._busy.append((self._loop.time(), self._running))

    # --- time and versions ------------------------------------------------------------------------------------------

    def _decoding_s(self) -> float:
        """Seconds in which the engine could decode: the loop's without the pauses."""
        now_s = self._loop.time()
        paused_s = 0.0 if self._paused_since_s is None else now_s - self._paused_since_s
        return now_s - self._paused_s - paused_s

    async def _decode_until(self, until_s: float) -> None:
        while (left_s := until_s - self._decoding_s()) > 1e-9:  # noqa: ASYNC110
            await asyncio.sleep(left_s)  # a pause meanwhile leaves something to wait for

    def _versions_at(self, times_s: np.ndarray) -> np.ndarray:
        """int32[N]: the version in service at each time; a token at the very moment of a commit is of the old one."""
        first = bisect.bisect_left(self._commits_s, times_s[0])
        places = np.searchsorted(np.asarray(self._commits_s[first:]), times_s, side="left") + first
        return np.asarray(self._versions, dtype=np.int32)[places]

    # --- weights ----------------------------------------------------------------------------------------------------

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        self._staged = manifest.version
        return StageTimings()

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        if self._staged != manifest.version:
            raise WeightsMismatch(f"version {manifest.version} is not staged; stage_weights comes first")
        running = self._running
        if not self._in_flight and running:
            self._draining = self._loop.create_future()
            try:
                await self._draining
            finally:
                self._draining = None
        self._paused_since_s = self._loop.time()
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self._paused_s += self._loop.time() - self._paused_since_s
        self._paused_since_s = None
        self._version, self._staged = manifest.version, None
        self._commits_s.append(self._decoding_s())
        self._versions.append(manifest.version)
        self._let_in()
        return CommitTimings(self._pause_s, self._pause_s, running)

    async def close(self) -> None:
        if self._alive:
            self._alive = False
            self._record.mkdir(exist_ok=True)
            (self._record / f"{len(list(self._record.iterdir()))}.json").write_text(json.dumps(self._busy))
