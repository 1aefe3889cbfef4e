"""Publications when the parameter server fails, returns, or is slow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.actors.learner.publisher import PublicationRefused, PublicationTimeout, Publisher
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import PublishWeights, WithdrawWeights
from headrace.transport import Activity, LoopClock, PeerLost, run_virtual
from headrace.transport.weights import Manifest, Probe


@dataclass(frozen=True)
class Staged:
    version: int
    step: int
    nbytes: int

    def seal(self) -> Manifest:
        return Manifest(self.version, self.step, "test", "", self.nbytes, (), (), {})


class Sender:
    """No bytes."""

    def __init__(self, num_buffers: int) -> None:
        self.num_buffers = num_buffers
        self.staged: set[int] = set()
        self.nbytes = 0

    def stage(self, tensors: Any, *, version: int, step: int, dtype: str | None) -> Staged | None:
        if len(self.staged) == self.num_buffers:
            return None
        self.staged.add(version)
        return Staged(version, step, self.nbytes)

    def release(self, version: int) -> None:
        self.staged.discard(version)

    def close(self) -> None:
        self.staged.clear()


class Generators:
    """The group of that role."""

    def __init__(self) -> None:
        self.names = ["generator/0"]
        self.came = asyncio.Event()

    def members(self) -> list[str]:
        return self.names

    async def wait_for(self, num: int, *, timeout_s: float) -> list[str]:
        while len(self.names) < num:
            await self.came.wait()
        return self.names


class PeerContext:
    """The part of a Context that the publisher uses; `up` says whether the server answers."""

    def __init__(self) -> None:
        self.activity = Activity(lambda: 0.0)
        self.clock = LoopClock()
        self.generators = Generators()
        self.up = True
        self.heard: list[int] = []
        self.announced: list[Manifest] = []
        self.labels: list[str] = []
        self.withdrawn = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, to: str, message: PublishWeights | WithdrawWeights, *, timeout_s: float) -> None:
        if not self.up:
            raise PeerLost("gone")
        if isinstance(message, WithdrawWeights):
            self.withdrawn.set()
        else:
            self.heard.append(message.manifest.version)
            self.announced.append(message.manifest)

    async def run_blocking(self, function: Any, *args: Any, label: str) -> Any:
        self.labels.append(label)
        return function(*args)

    def tell_soon(self, to: str, message: Any) -> None:
        """Metrics."""

    def spawn(self, coroutine: Any, name: str) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    def group(self, role: str) -> Generators:
        assert role == "generator"
        return self.generators

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)


@pytest.fixture
def make(tmp_path) -> Any:
    def make(
        timeout_s: float = 5.0, every_s: float | None = None, staging: bool = True, **options: Any
    ) -> tuple[Publisher, PeerContext, Sender]:
        context, sender = PeerContext(), Sender(2 if staging else 1)

        async def run(label: str, function: Any, *args: Any) -> Any:
            return function(*args)

        publisher = Publisher(
            context,  # type: ignore[arg-type]
            sender,
            VersionLog(tmp_path / "versions.jsonl"),
            tensors=dict,
            run=run,
            every_steps=2,
            every_s=every_s,
            staging=staging,
            dtype=None,
            timeout_s=timeout_s,
            **options,
        )
        return publisher, context, sender

    return make


def test_publishes_every_so_many_steps_and_tries_again_after_a_skip(make):
    async def main() -> None:
        publisher, context, _ = make()
        assert await publisher.publish(0) == 1
        assert [await publisher.publish_if_due(step) for step in (1, 2, 3)] == [False, True, False]
        assert [await publisher.publish_if_due(step) for step in (4, 5)] == [False, False]  # both buffers are read
        assert publisher.num_skipped == 2
        publisher.released(1)
        assert await publisher.publish_if_due(6)
        await context.settle()
        assert context.heard == [1, 2, 3]
        assert (publisher.version, publisher.version_step) == (3, 6)

    run_virtual(main())


def test_the_probe_is_begun_where_weights_are_staged_and_computed_after_training_went_on(make):
    """The next step waits for it: it is computed before anything that may wait, such as the seal of another version."""

    async def main() -> None:
        begun: list[int] = []

        def begin(version: int) -> Any:
            begun.append(version)
            return compute if version == 2 else None

        async def compute() -> Probe:
            context.labels.append("update probe")
            return Probe((1, 2), (-1.0,), 0.1)

        publisher, context, _ = make(probe=begin)
        await publisher.publish(0)
        context.labels.clear()
        assert await publisher.publish_if_due(2)
        assert (begun, context.labels) == ([1, 2], [])
        await context.settle()
        assert context.labels == ["update probe", "seal"]
        assert [manifest.probe for manifest in context.announced] == [None, Probe((1, 2), (-1.0,), 0.1)]

    run_virtual(main())


def test_a_version_that_is_not_probed_does_not_overtake_one_that_is(make):
    async def main() -> None:
        computed = asyncio.Event()

        async def compute() -> Probe:
            await computed.wait()
            return Probe((1, 2), (-1.0,), 0.1)

        publisher, context, _ = make(probe=lambda version: compute if version == 1 else None)
        first = asyncio.ensure_future(publisher.publish(0))
        await asyncio.sleep(1)
        second = asyncio.ensure_future(publisher.publish(1))
        await asyncio.sleep(1)
        assert context.heard == []
        computed.set()
        await asyncio.gather(first, second)
        assert context.heard == [1, 2]

    run_virtual(main())


def test_a_server_that_stays_away_never_uses_the_buffers_up(make):
    """A version that was never announced gives its buffer to the next one; no number is used twice."""

    async def main() -> None:
        publisher, context, sender = make()
        await publisher.publish(0)
        context.up = False
        for step in (2, 4, 6, 8):
            assert await publisher.publish_if_due(step)
            await context.settle()
        assert publisher.num_failed == 4
        assert sender.staged == {1, 5}

    run_virtual(main())


def test_a_version_that_was_not_heard_of_is_announced_again_until_it_is(make):
    """A run that waits for sessions of this very version comes to no further step."""

    async def main() -> None:
        publisher, context, sender = make()
        await publisher.publish(0)
        context.up = False
        assert await publisher.publish_if_due(2)
        await asyncio.sleep(100)
        assert context.heard == [1]
        context.up = True
        await asyncio.sleep(1)
        assert context.heard == [1, 2]
        await asyncio.sleep(10)
        assert context.heard == [1, 2]
        assert sender.staged == {1, 2}

    run_virtual(main())


def test_a_restarted_server_gets_the_newest_version_again(make):
    async def main() -> None:
        publisher, context, sender = make()
        publisher.server_up("first")
        await publisher.publish(0)
        context.up = False
        await publisher.publish_if_due(2)
        await context.settle()
        context.up = True
        publisher.server_up("second")
        await context.settle()
        assert context.heard == [1, 2]
        assert sender.staged == {2}  # nobody is left who would release version 1
        assert await publisher.publish_if_due(4)
        assert sender.staged == {2, 3}

    run_virtual(main())


def test_a_version_that_no_generator_took_is_published_anew_with_the_weights_of_now(make):
    async def main() -> None:
        publisher, context, _ = make()
        await publisher.publish(0)
        publisher.served(1)
        await publisher.publish_if_due(2)
        publisher.released(1)
        publisher.refused(2, "generator/0: gone", step=lambda: 3)
        publisher.refused(2, "generator/0: gone", step=lambda: 3)  # said twice
        await context.settle()
        assert context.heard == [1, 2, 3]
        assert publisher.version_step == 3
        for _ in range(5):
            publisher.refused(2, "generator/1: gone", step=lambda: 3)  # a newer one is on its way
        await context.settle()
        assert context.heard == [1, 2, 3]

    run_virtual(main())


def test_a_run_whose_generators_take_no_version_any_more_ends_by_name(make):
    async def main() -> None:
        publisher, context, _ = make()
        for version in (1, 2, 3):
            if version == 1:
                await publisher.publish(0)
            publisher.released(version - 1)
            publisher.refused(version, "generator/0: WeightsMismatch: gone", step=lambda: 0)
            if version < 3:
                await context.settle()
        with pytest.raises(PublicationRefused, match="last 3 versions; version 3 failed on generator/0: WeightsMism"):
            await context.settle()
        assert context.heard == [1, 2, 3]

    run_virtual(main())


def test_the_last_publication_waits_for_a_buffer(make):
    async def main() -> None:
        publisher, _, _ = make()
        await publisher.publish(0)
        await publisher.publish(1)
        waiting = asyncio.ensure_future(publisher.publish(2))
        await asyncio.sleep(0)
        assert not waiting.done()
        publisher.released(1)
        assert await waiting == 3

    run_virtual(main())


def test_waits_end_by_name_at_their_deadline(make):
    async def main() -> None:
        publisher, _, _ = make(timeout_s=0.01)
        version = await publisher.publish(0)
        with pytest.raises(PublicationTimeout, match="acknowledged version 1"):
            await publisher.wait_served(version)
        publisher.served(1)
        await publisher.wait_served(version)

    run_virtual(main())


def test_what_the_bytes_take_is_not_late(make):
    """500 MB at 10 MB/s: 50 s beside the fixed 5."""

    async def main() -> None:
        publisher, context, sender = make(timeout_s=5.0, min_mb_per_s=10.0)
        sender.nbytes = 500_000_000
        version = await publisher.publish(0)
        started_s = context.clock.time()
        with pytest.raises(PublicationTimeout, match="within 55 s"):
            await publisher.wait_served(version)
        assert context.clock.time() - started_s == pytest.approx(55.0)

    run_virtual(main())


def test_an_engine_that_still_starts_is_not_late(make):
    """vLLM takes minutes on a busy machine: the deadline runs while a generator lives."""

    async def main() -> None:
        publisher, context, _ = make(timeout_s=5.0)
        generators = context.generators
        generators.names = []
        version = await publisher.publish(0)
        waiting = asyncio.ensure_future(publisher.wait_served(version))
        await asyncio.sleep(60)
        assert not waiting.done()
        generators.names = ["generator/0"]
        generators.came.set()
        publisher.served(version)
        await waiting

    run_virtual(main())


def test_an_interval_in_seconds_holds_back_what_steps_alone_would_send(make):
    async def main() -> None:
        publisher, context, _ = make(every_s=3.0)
        await publisher.publish(0)
        publisher.served(1)
        assert publisher.due_in_s(1) == float("inf")
        assert publisher.due_in_s(2) == 3.0
        assert not await publisher.publish_if_due(2)
        assert publisher.num_skipped == 0  # not due is not skipped
        await asyncio.sleep(3.0)
        assert await publisher.publish_if_due(9)
        await context.settle()
        assert (publisher.version, publisher.version_step) == (2, 9)  # the steps between are nobody's

    run_virtual(main())


def test_without_staging_the_one_buffer_is_asked_back_and_each_version_is_waited_for(make):
    async def main() -> None:
        publisher, context, sender = make(staging=False)
        await publisher.publish(0)
        publisher.served(1)
        training = asyncio.ensure_future(publisher.publish_if_due(2))
        await context.withdrawn.wait()
        assert sender.staged == {1}
        publisher.released(1)
        await asyncio.sleep(1)
        assert context.heard == [1, 2]
        assert not training.done()
        publisher.served(2)
        assert await training

    run_virtual(main())


def test_a_server_that_was_restarted_holds_no_buffer_back(make):
    """It knows of no version: who reads the old one finds it changed, and nobody begins with it."""

    async def main() -> None:
        publisher, context, _ = make(staging=False)
        publisher.server_up("first")
        await publisher.publish(0)
        publisher.served(1)
        training = asyncio.ensure_future(publisher.publish_if_due(2))
        await context.withdrawn.wait()
        publisher.server_up("second")
        await asyncio.sleep(1)
        assert context.heard == [1, 2]
        publisher.served(2)
        assert await training

    run_virtual(main())
