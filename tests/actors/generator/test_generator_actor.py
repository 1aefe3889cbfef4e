"""The generator as an actor, in virtual time: its gate, its updates, its death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.messages import CommitWeights, Completion, Generate, Metrics, StageWeights
from headrace.actors.session import Sampling
from headrace.transport import (
    Actor,
    ActorFailed,
    DeadlineExceeded,
    PeerWait,
    RemoteError,
    Runtime,
    WaitQuery,
    WaitReport,
    handles,
    run_virtual,
)
from headrace.transport.weights import Manifest, Probe, WeightsMismatch


def request() -> Generate:
    return Generate("s", np.asarray([1], dtype=np.int32), Sampling(max_tokens=64))


def manifest(version: int) -> Manifest:
    return Manifest(version, version, "shm", "", 0, (), (), {})


class Monitor(Actor):
    def __init__(self) -> None:
        self.metrics: list[Metrics] = []

    @handles(Metrics)
    async def take(self, message: Metrics) -> None:
        self.metrics.append(message)


def with_generator(
    engine: ScriptedEngine, body: Callable[[Any, Monitor], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def main() -> None:
        runtime = Runtime(encode_local=True)
        await runtime.start()
        monitor = Monitor()
        await runtime.add(monitor, "monitor/0")
        await runtime.add(Generator(engine=engine, **options), "generator/0")
        try:
            await body(runtime, monitor)
        finally:
            await runtime.stop()
        assert engine.closed

    run_virtual(main())


async def ask(runtime: Any, message: object, timeout_s: float = 60.0) -> Any:
    return await runtime.context.ask("generator/0", message, timeout_s=timeout_s)


def test_requests_wait_for_the_first_version() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        early = asyncio.ensure_future(ask(runtime, request()))
        await asyncio.sleep(10)
        assert not early.done()
        report: WaitReport = await ask(runtime, WaitQuery())
        assert report.waits == (PeerWait("parameter_server", "the version to begin with", 1, 10.0),)
        await ask(runtime, StageWeights(manifest(7)))
        assert not early.done()
        await ask(runtime, CommitWeights(7))
        completion: Completion = await early
        assert completion.versions.tolist() == [7]

    with_generator(ScriptedEngine(), body)


def test_commit_of_version_0_means_serve_what_you_have() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        committed = await ask(runtime, CommitWeights(0))
        assert (committed.version, committed.pause_s) == (0, 0.0)
        assert (await ask(runtime, request())).versions.tolist() == [0]

    with_generator(ScriptedEngine(), body)


def test_an_update_with_requests_running_is_measured_and_aborts_none() -> None:
    """cases E92: radixark/miles#2589, #2296."""

    async def body(runtime: Any, monitor: Monitor) -> None:
        running = [asyncio.ensure_future(ask(runtime, request())) for _ in range(16)]
        await asyncio.sleep(3.5)
        await ask(runtime, StageWeights(manifest(1)))
        committed = await ask(runtime, CommitWeights(1))
        assert committed.requests_running == 16
        for completion in await asyncio.gather(*running):
            assert completion.versions.tolist() == [0] * 3 + [1] * 5
            assert completion.finish_reason == "stop"
        await asyncio.sleep(0.6)
        update = [m for m in monitor.metrics if m.stream == "weights"]
        assert [(m.step_name, m.step) for m in update] == [("version", 1)]
        assert update[0].values["pause_s"] == 2.0
        assert update[0].values["requests_running"] == 16.0
        assert any(m.stream == "generate" and m.values["tokens_total"] == 128 for m in monitor.metrics)

    engine = ScriptedEngine(script=[ScriptedTurn(tuple(range(8)), token_s=1.0)], pause_s=2.0)
    with_generator(engine, body, wait_for_weights=False, metrics_period_s=0.5)


def test_versions_never_go_back() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        for version in (3, 2, 3):
            await ask(runtime, StageWeights(manifest(version)))
            assert (await ask(runtime, CommitWeights(version))).version == 3

    engine = ScriptedEngine()
    with_generator(engine, body)
    assert engine.commits == [3]


def test_a_failed_stage_leaves_the_old_version() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        await ask(runtime, CommitWeights(0))
        engine.fail_next_stage = WeightsMismatch("bucket 3 differs")
        with pytest.raises(RemoteError, match="bucket 3 differs"):
            await ask(runtime, StageWeights(manifest(1)))
        with pytest.raises(RemoteError, match="nothing is staged"):
            await ask(runtime, CommitWeights(1))
        assert (await ask(runtime, request())).versions.tolist() == [0]

    engine = ScriptedEngine()
    with_generator(engine, body)


def test_an_update_outlives_its_askers_deadline() -> None:
    """Half an update must not be left behind: the next one waits for its end."""

    async def body(runtime: Any, monitor: Monitor) -> None:
        await ask(runtime, StageWeights(manifest(1)))
        with pytest.raises(DeadlineExceeded):
            await ask(runtime, CommitWeights(1), timeout_s=1.0)
        await ask(runtime, StageWeights(manifest(2)))
        assert engine.commits == [1]
        await ask(runtime, CommitWeights(2))

    engine = ScriptedEngine(pause_s=10.0)
    with_generator(engine, body)
    assert engine.commits == [1, 2]


def test_a_request_that_cannot_be_served_is_the_askers_error() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        with pytest.raises(RemoteError, match="exceed the context of 32 tokens"):
            await ask(runtime, request())
        assert not runtime.failed.done()

    with_generator(ScriptedEngine(context_tokens=32), body, wait_for_weights=False)


def test_a_dead_engine_fails_the_actor_and_every_caller() -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        pending = [asyncio.ensure_future(ask(runtime, request())) for _ in range(5)]
        await asyncio.sleep(1)
        engine.die("killed")
        for end in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(end, RemoteError)
            assert "killed" in str(end)
        with pytest.raises(ActorFailed, match="killed"):
            await runtime.failed

    engine = ScriptedEngine(script=[ScriptedTurn(first_token_s=100.0)])
    with_generator(engine, body, wait_for_weights=False)


def test_settings_are_checked_at_construction() -> None:
    with pytest.raises(ValueError, match="max_requests must be >= 1, got 0"):
        Generator(engine=ScriptedEngine(), max_requests=0)
    with pytest.raises(ValueError, match="metrics_period_s must be >= 0"):
        Generator(engine=ScriptedEngine(), metrics_period_s=-1)


def probed(version: int, logprob: float) -> Manifest:
    """The scripted engine finds -0.5 for every token."""
    return replace(manifest(version), probe=Probe((3, 4, 5), (logprob, -0.5), bound=1e-4))


async def serve(runtime: Any, wanted: Manifest) -> None:
    await ask(runtime, StageWeights(wanted))
    await ask(runtime, CommitWeights(wanted.version))


def test_every_update_is_probed_and_a_gap_past_its_bound_is_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        await serve(runtime, probed(1, -0.5))
        await asyncio.sleep(1)
        assert "differ from the learner's" not in caplog.text
        await serve(runtime, probed(2, -0.75))
        await asyncio.sleep(1)
        found = [metrics for metrics in monitor.metrics if metrics.stream == "update_probe"]
        assert [(metrics.step, metrics.values["mean"]) for metrics in found] == [(1, 0.0), (2, 0.125)]
        assert [metrics.values["alarms_total"] for metrics in found] == [0.0, 1.0]
        assert "log-probs of version 2 differ from the learner's by 0.125" in caplog.text

    with_generator(ScriptedEngine(), body)


def test_a_probe_that_a_later_update_came_into_says_nothing() -> None:
    slow = ScriptedTurn(token_ids=(1,), first_token_s=5.0)

    async def body(runtime: Any, monitor: Monitor) -> None:
        await serve(runtime, probed(1, -9.0))
        await asyncio.sleep(1)
        await serve(runtime, manifest(2))
        await asyncio.sleep(10)
        assert [metrics for metrics in monitor.metrics if metrics.stream == "update_probe"] == []

    with_generator(ScriptedEngine(script=[slow]), body)


def test_an_engine_that_cannot_be_probed_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    async def body(runtime: Any, monitor: Monitor) -> None:
        await serve(runtime, probed(1, -0.5))
        await asyncio.sleep(1)
        assert "version 1 was not probed: ValueError" in caplog.text

    with_generator(ScriptedEngine(context_tokens=2), body)
