"""What the generator actor asks of an inference engine (the contract: tests/actors/generator/test_engine_contract.py).

engine = make()
await engine.start()                                   # loads `model_path`; version 0
completion = await engine.generate(request)            # many at once: continuous batching inside
timings = await engine.stage_weights(manifest)         # bytes near and verified; decoding goes on
timings = await engine.commit_weights(manifest)        # pause, load, resume; requests in flight go on
await engine.close()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.actors.generator.group_ranks import Broadcast, Ranks
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import Manifest


@dataclass(frozen=True, slots=True)
class StageTimings:
    """`send_s`: until the bytes were near (nothing, where they lie in shared memory). `verify_s`: every checksum."""

    send_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CommitTimings:
    """`pause_s` contains `load_s`. `requests_running`: requests in flight when the pause began."""

    pause_s: float
    load_s: float
    requests_running: int


class EngineDied(RuntimeError):
    """The engine cannot serve any more; every pending `generate` raises this."""


class Engine(Protocol):
    @property
    def version(self) -> int:
        """The version in service; 0 is what `model_path` held."""

    @property
    def num_running(self) -> int:
        """Requests in flight."""

    async def start(self) -> None:
        """Load the model. Raises EngineDied or ValueError (bad path, bad setting) with what to do."""

    async def generate(self, request: Generate) -> Completion:
        """Sample one continuation. Cancelling the awaiting task aborts the request and frees its place.
        Raises ValueError where prompt + max_tokens exceed the context, EngineDied where the engine is gone,
        and ValueError where the engine returned no log-probs (they are never invented)."""

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        """Bring the version near; check names, shapes, dtypes and every checksum, while decoding goes on. Replaces what
        was staged before. Raises WeightsMismatch: the old version stays in service."""

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        """Switch to the staged version. Tokens sampled afterwards carry `manifest.version`, also in requests in flight.
        Raises WeightsMismatch where the old version serves on, EngineDied where it cannot."""

    async def close(self) -> None:
        """Release everything; pending requests raise EngineDied. Idempotent."""


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that can give its memory back while nothing is in flight (generator.engine.sleep_while_training)."""

    @property
    def sleeps(self) -> bool:
        """Whether it was asked to, by its settings."""

    async def sleep(self) -> None:
        """Give the memory of weights and key-value cache back; the weights are kept elsewhere. Nothing is in flight.
        Until `wake` nothing but `stage_weights`, `receive_weights` and `close` is called. Raises EngineDied."""

    async def wake(self) -> None:
        """Serve again, by the version of before. Raises EngineDied."""


@runtime_checkable
class CollectiveEngine(Engine, Protocol):
    """An engine whose workers can be ranks of a broadcast (weights=nccl)."""

    @property
    def ranks(self) -> Ranks:
        """Its workers in a collective broadcast."""

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        """As `stage_weights`, of what is broadcast now. Raises GroupBroken too."""

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        """Receive and commit at once, without a staging buffer: pause, load each verified bucket as it arrives, resume.
        Raises as both; once a part is loaded any failure is EngineDied."""
