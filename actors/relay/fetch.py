"""One version's way to this host: buckets are pulled, a few at a time, checked as they come, and asked for again where
they were damaged or lost. Nothing is received that was not asked for, and what has come is not asked for twice.

Ends when every bucket is whole, or in WeightsMismatch or TransportError; the buffer is the caller's. Called by
actor.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from headrace.actors.messages import FetchBucket, WeightsBucket
from headrace.transport import Context, DeadlineExceeded, PeerLost, Refused
from headrace.transport.weights import Bucket, Manifest, WeightsMismatch
from headrace.transport.weights.checksum import is_whole
from headrace.transport.weights.delta import decode, runs_of

logger = logging.getLogger(__name__)

SOURCE = "parameter_server"
MAX_IN_FLIGHT = 64
"""buckets: a link is full with a few, and each is a message in memory"""
_PAUSE_S = 0.2
_MAX_DAMAGED = 5
"""of one bucket: a link that damages more than that damages all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """in_flight: buckets that are asked for at once: what the link and both hosts hold for this relay. timeout_s: of
    one bucket. patience_s: without a single bucket for so long (the source is dead, or starts), it is given up."""

    in_flight: int = 4
    timeout_s: float = 60.0
    patience_s: float = 120.0

    def __post_init__(self) -> None:
        if not 1 <= self.in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"in_flight must be 1 to {MAX_IN_FLIGHT} buckets, got {self.in_flight}")
        for name in ("timeout_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0 seconds, got {getattr(self, name)}")


@dataclass(slots=True)
class Figures:
    """nbytes: received, headers not counted. damaged: buckets that came with a wrong checksum."""

    nbytes: int = 0
    full: int = 0
    delta: int = 0
    damaged: int = 0
    repeated: int = 0
    decode_s: float = 0.0


@dataclass(slots=True)
class Fetch:
    """buffer: uint8[manifest.nbytes], filled when `run` returns. base: (version, its bytes), None for whole buckets.
    below: these are the full weights below adapter `version`."""

    context: Context
    settings: FetchSettings
    version: int
    manifest: Manifest
    buffer: np.ndarray
    base: tuple[int, np.ndarray] | None = None
    below: bool = False
    keep: bool = False
    figures: Figures = field(default_factory=Figures)
    _missing: deque[int] = field(default_factory=deque)
    _placing: set[asyncio.Future[bool]] = field(default_factory=set)
    _failure: BaseException | None = None
    _moved_s: float = 0.0

    async def run(self) -> Figures:
        """Until all is here. Raises WeightsMismatch where the version is gone at its source, or damaged again and
        again; TransportError where the source cannot be reached for `patience_s`."""
        self._missing.extend(range(len(self.manifest.buckets)))
        self._moved_s = self.context.clock.time()
        try:
            await asyncio.gather(*(self._pull() for _ in range(self.settings.in_flight)))
        finally:
            while self._placing:  # threads do not stop: none may write into a buffer that is another version's by then
                await asyncio.wait(self._placing, timeout=1.0)
        if self._failure is not None:
            raise self._failure
        return self.figures

    async def _pull(self) -> None:
        while self._missing and self._failure is None:
            try:
                await self._bring(self._missing.popleft())
            except Exception as error:
                self._failure = self._failure or error

    async def _bring(self, index: int) -> None:
        bucket = self.manifest.buckets[index]
        base = self.base
        for _ in range(_MAX_DAMAGED):
            reply = await self._ask(index, None if base is None else base[0])
            started_s = self.context.clock.time()
            placing = asyncio.ensure_future(
                self.context.run_blocking(self._place, reply, bucket, base, label="place a bucket")
            )
            self._placing.add(placing)
            placing.add_done_callback(self._placing.discard)
            whole = await asyncio.shield(placing)
            self._moved_s = self.context.clock.time()
            self.figures.decode_s += self._moved_s - started_s
            self.figures.nbytes += len(reply.data)
            if whole:
                self.figures.full += reply.kind == "full"
                self.figures.delta += reply.kind == "delta"
                return
            self.figures.damaged += 1
            base = None  # the base itself may be another one than the source's
            logger.warning("version %d, bucket %d: %s came damaged; asked for again", self.version, index, reply.kind)
        raise WeightsMismatch(f"version {self.version}: bucket {index} came damaged {_MAX_DAMAGED} times in a row")

    async def _ask(self, index: int, base: int | None) -> WeightsBucket:
        """Said again where the connection broke, or the source was restarted and does not know the version yet."""
        question = FetchBucket(self.version, index, self.below, base, self.keep)
        clock = self.context.clock
        while True:
            try:
                reply: WeightsBucket = await self.context.ask(SOURCE, question, timeout_s=self.settings.timeout_s)
            except (PeerLost, Refused, DeadlineExceeded) as error:
                if clock.time() - self._moved_s >= self.settings.patience_s:
                    raise
                logger.info("version %d, bucket %d is asked for again: %s", self.version, index, error)
            else:
                if reply.kind == "gone" or (
                    reply.kind == "unknown" and clock.time() - self._moved_s >= self.settings.patience_s
                ):
                    raise WeightsMismatch(f"version {self.version} is {reply.kind} at its source: {reply.reason}")
                if reply.kind != "unknown":
                    return reply
            self.figures.repeated += 1
            await clock.sleep(_PAUSE_S)

    def _place(self, reply: WeightsBucket, bucket: Bucket, base: tuple[int, np.ndarray] | None) -> bool:
        """In a thread. Whether the bucket is now what the learner staged."""
        place = slice(bucket.offset, bucket.offset + bucket.nbytes)
        out = self.buffer[place]
        if reply.kind == "full":
            if reply.data.dtype != np.uint8 or reply.data.shape != out.shape:
                return False
            np.copyto(out, reply.data)
        elif base is None:
            return False
        else:
            try:
                decode(reply.data.data, base[1][place], out, runs_of(self.manifest, bucket))
            except WeightsMismatch as error:
                logger.warning("version %d: %s", self.version, error)
                return False
        return is_whole(out.data, bucket)
