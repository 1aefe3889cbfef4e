"""A run that stands still is looked into by the monitor, told about, written down, and seen to go on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.messages import Metrics
from headrace.actors.monitor.actor import Monitor
from headrace.transport import (
    Actor,
    Context,
    DeadlineExceeded,
    LoopbackNetwork,
    RemoteError,
    Runtime,
    handles,
    message,
    run_virtual,
)


@message("stall.pass_on")
@dataclass(frozen=True, slots=True)
class PassOn:
    hops: int


class Ring(Actor):
    """Hands the message on from a serial handler: two of them deadlock until a deadline ends it."""

    def __init__(self, *, to: str) -> None:
        self.to = to

    @handles(PassOn)
    async def pass_on(self, message: PassOn) -> None:
        if message.hops:
            await self.context.ask(self.to, PassOn(message.hops - 1), timeout_s=45)


class Worker(Actor):
    async def on_start(self, context: Context) -> None:
        context.spawn(self.work(), "work")

    async def work(self) -> None:
        with self.context.activity.working("train"):
            await self.context.clock.sleep(3600)


Play = Callable[[Runtime, Callable[[int], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]]


def run(folder: Path, play: Play, *actors: tuple[Actor, str], **settings: Any) -> list[dict[str, Any]]:
    """The lines of stalls.jsonl after `play(runtime, move)`; `move(step)` is progress."""

    async def main() -> None:
        network = LoopbackNetwork()
        runtime = Runtime(network)
        await runtime.start()
        await runtime.add(Monitor(run_dir=str(folder), tensorboard=False, console_every_s=0, **settings), "monitor")
        for actor, name in actors:
            await runtime.add(actor, name)

        async def move(step: int) -> None:
            await runtime.context.tell("monitor", Metrics("custom", "step", step, {}))

        await play(runtime, move)
        await runtime.stop()

    run_virtual(main())
    path = folder / "stalls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_deadlock_is_diagnosed_and_its_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """messaging fault 22: A → B → A over serial handlers, with everybody silent meanwhile."""
    caplog.set_level(logging.INFO, "headrace.actors.monitor")

    async def play(runtime: Runtime, move: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        await move(1)
        with pytest.raises((DeadlineExceeded, RemoteError)):
            await runtime.context.ask("a", PassOn(5), timeout_s=200)
        await move(2)
        await runtime.clock.sleep(2)

    told, again, ended = run(tmp_path, play, (Ring(to="b"), "a/0"), (Ring(to="a"), "b/0"), stall_s=20.0)
    assert (told["kind"], told["is_stall"], told["episode"], told["told"]) == ("cycle", True, 0, 1)
    assert told["culprit"] == "a/0 → b/0 → a/0"
    assert told["quiet_s"] == pytest.approx(20, abs=1)
    assert told["last_moved"] == "custom"
    assert told["actors"]["a/0"]["waits"][0]["peer"] == "b/0"
    assert any("in pass_on" in frame for frame in told["actors"]["b/0"]["tasks"][0]["stack"])
    assert (again["told"], again["quiet_s"]) == (2, pytest.approx(40, abs=1))
    assert ended["lasted_s"] == pytest.approx(45, abs=2)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[0].startswith("the run has stood still for 20 s: ")
    assert "waits for b/0 (PassOn, 20 s)" in warnings[0]
    assert any("the run goes on, after 4" in record.getMessage() for record in caplog.records)


def test_a_deadlock_beside_a_run_that_goes_on_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play(runtime: Runtime, move: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        for time_s in range(100):
            if time_s % 50 == 0:
                await runtime.context.tell("a", PassOn(5))
            await move(time_s)
            await runtime.clock.sleep(1)

    (told,) = run(tmp_path, play, (Ring(to="b"), "a/0"), (Ring(to="a"), "b/0"), stall_s=20.0)
    assert (told["kind"], told["is_stall"]) == ("cycle", False)
    assert told["actors"]["a/0"]["waits"][0]["peer"] == "b/0"
    (warning,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("the run goes on, but ")]
    assert "waits for b/0 (PassOn, 20 s)" in warning


def test_an_actor_at_work_is_busy_and_no_stall(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.actors.monitor")

    async def play(runtime: Runtime, move: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        await move(1)
        await runtime.clock.sleep(100)

    told = run(tmp_path, play, (Worker(), "learner/0"), stall_s=60.0)
    assert [(line["kind"], line["is_stall"], line["culprit"]) for line in told] == [("busy", False, "learner/0")]
    assert "nothing has moved for 60 s: learner/0 is busy: 'train' has taken 60 s so far" in caplog.text


@pytest.mark.parametrize(("stall_s", "moves"), [(60.0, False), (0.0, True)])
def test_a_start_that_takes_long_is_no_stall_and_0_never_looks(tmp_path: Path, stall_s: float, moves: bool) -> None:
    async def play(runtime: Runtime, move: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        if moves:
            await move(1)
        for _ in range(500):
            await runtime.context.tell("monitor", Metrics("dispatcher", "wall_s", runtime.clock.time(), {"issued": 0}))
            await runtime.clock.sleep(2)

    assert run(tmp_path, play, (Worker(), "learner/0"), stall_s=stall_s) == []


def test_a_limit_that_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match="stall_s must be >= 0"):
        Monitor(run_dir="unused", stall_s=-1.0)
