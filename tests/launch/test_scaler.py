"""A change of counts in a run, in virtual time with played processes: who is waited for, and what becomes of those that
die, hang or never come."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_world import SETTINGS, World

from headrace.actors.messages import Completion, Generate
from headrace.launch.scaling import CannotScale, Wish
from headrace.launch.supervisor import Supervisor
from headrace.transport import Actor, handles, message

PARTS = {"parameter_server": {"_target_": "a.B"}}


@message("scaler.work")
@dataclass(frozen=True, slots=True)
class Work:
    pass


class Worker(Actor):
    """Holds each piece of work until it is told to let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    @handles(Work, concurrent=True)
    async def work(self, message: Work) -> Work:
        await self.let_go.wait()
        return message


class LateGenerator(Actor):
    """Serves a token of version 7 once `ready` is set."""

    def __init__(self, ready: asyncio.Event) -> None:
        self._ready = ready

    @handles(Generate, concurrent=True)
    async def generate(self, message: Generate) -> Completion:
        await self._ready.wait()
        return Completion(np.array([3], np.int32), np.array([-1.0], np.float32), np.array([7], np.int32), "length")


def members(world: World, role: str) -> list[str]:
    return world.host.context.group(role).members()


def recorded(folder: Path) -> list[tuple[str, str, int]]:
    lines = [json.loads(line) for line in (folder / "membership.jsonl").read_text().splitlines()]
    return [(line["event"], line["actors"][0], line["count"]) for line in lines]


class Told(list[str]):
    def said(self, part: str) -> bool:
        return any(part in line for line in self)


def test_one_joins_and_leaves_and_its_index_is_not_used_again(tmp_path: Path) -> None:
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        assert await supervisor.scaler.change(Wish("grader", 2), told.append) == "grader=2: done"
        assert members(world, "grader") == ["grader/0", "grader/1"]
        assert "grader=2" in supervisor.scaler.counts()
        await supervisor.scaler.change(Wish("grader", 1), told.append)
        assert members(world, "grader") == ["grader/0"]
        assert await supervisor.scaler.change(Wish("grader", 1), told.append) == "grader=1 already: nothing changes"
        await supervisor.scaler.change(Wish("grader", 2), told.append)
        assert members(world, "grader") == ["grader/0", "grader/2"]
        await world.finish()

    world = World(folder=tmp_path, grader=1, monitor=1)
    outcome = world.run(script)
    assert (outcome.ending, outcome.restarts) == ("finished", {})
    assert world.stopped == ["grader-2", "grader-0", "monitor-0"], "who left was not signalled, who joined is stopped"
    assert recorded(tmp_path) == [("joined", "grader/1", 2), ("left", "grader/1", 1), ("joined", "grader/2", 2)]
    assert told.said("grader-1 has left: it finished what it had (exit code 0)")


def test_a_generator_has_joined_when_it_serves(tmp_path: Path) -> None:
    """Up is not enough: it holds requests until it has the newest version."""
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        ready = asyncio.Event()
        world.actor = lambda name: LateGenerator(ready)
        await asyncio.sleep(5)
        change = asyncio.ensure_future(supervisor.scaler.change(Wish("generator", 2), told.append))
        await asyncio.sleep(9.5)
        assert members(world, "generator") == ["generator/0", "generator/1"]
        assert not change.done()
        ready.set()
        await change
        await world.finish()

    World(folder=tmp_path, parts=PARTS, generator=1).run(script)
    assert told.said("waiting for generator-1 to serve (6 s)")
    assert told[-1] == "generator-1 has joined: it serves version 7"


def test_who_leaves_gets_nothing_new_and_finishes_what_it_has(tmp_path: Path) -> None:
    told = Told()
    workers: dict[str, Worker] = {}

    async def script(world: World, supervisor: Supervisor) -> None:
        def worker(name: str) -> Worker:
            return workers.setdefault(name, Worker())

        world.actor = worker
        await asyncio.sleep(5)
        group = world.host.context.group("grader")
        at_hand = asyncio.ensure_future(world.host.context.ask("grader/1", Work(), timeout_s=50))
        await asyncio.sleep(1)
        change = asyncio.ensure_future(supervisor.scaler.change(Wish("grader", 1), told.append))
        await asyncio.sleep(1)
        assert group.members() == ["grader/0"]
        await asyncio.sleep(10)
        assert not change.done()
        assert not at_hand.done()
        workers["grader/1"].let_go.set()
        assert isinstance(await at_hand, Work)
        await change
        await world.finish()

    world = World(folder=tmp_path, grader=2)
    assert world.run(script).restarts == {}
    assert told.said("waiting for grader-1 to finish what it has (10 s)")
    assert world.stopped == ["grader-0"]


@pytest.mark.parametrize("stop_s", [0.1, None])
def test_who_does_not_finish_is_stopped_and_then_killed(stop_s: float | None, tmp_path: Path) -> None:
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        world.actor = lambda name: Worker()
        world.stop_s = lambda role: stop_s
        await asyncio.sleep(5)
        at_hand = asyncio.ensure_future(world.host.context.ask("grader/1", Work(), timeout_s=500))
        await asyncio.sleep(1)
        began_s = asyncio.get_running_loop().time()
        await supervisor.scaler.change(Wish("grader", 1), told.append)
        took_s = asyncio.get_running_loop().time() - began_s
        assert SETTINGS.leave_timeout_s <= took_s <= SETTINGS.leave_timeout_s + SETTINGS.drain_timeout_s + 2
        assert "grader/1" in str(await asyncio.gather(at_hand, return_exceptions=True))
        world.stop_s = lambda role: 0.1
        await world.finish()

    world = World(folder=tmp_path, grader=2)
    outcome = world.run(script)
    assert (outcome.ending, outcome.restarts) == ("finished", {})
    assert told.said("grader-1 still has work after 60 s: it is stopped")
    assert world.newest("grader-1").ended.result() == (0 if stop_s else -9)
    assert len(world.lives["grader-1"]) == 1


def test_one_that_dies_while_it_leaves_has_left(tmp_path: Path) -> None:
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        world.actor = lambda name: Worker()
        await asyncio.sleep(5)
        at_hand = asyncio.ensure_future(world.host.context.ask("grader/1", Work(), timeout_s=500))
        change = asyncio.ensure_future(supervisor.scaler.change(Wish("grader", 1), told.append))
        await asyncio.sleep(1)
        world.newest("grader-1").die(-9)
        await change
        await asyncio.gather(at_hand, return_exceptions=True)
        await asyncio.sleep(20)
        await world.finish()

    world = World(folder=tmp_path, grader=2)
    assert world.run(script).restarts == {}
    assert told.said("grader-1 has left: it died (signal 9)")
    assert len(world.lives["grader-1"]) == 1


def test_a_joiner_that_is_killed_is_started_again_and_joins(tmp_path: Path) -> None:
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        world.start_s = lambda role: 4.0
        await asyncio.sleep(10)
        change = asyncio.ensure_future(supervisor.scaler.change(Wish("grader", 2), told.append))
        await asyncio.sleep(1)
        world.newest("grader-1").die(-9)
        await change
        assert members(world, "grader") == ["grader/0", "grader/1"]
        await world.finish()

    world = World(folder=tmp_path, grader=1)
    assert world.run(script).restarts == {"grader-1": 1}
    assert recorded(tmp_path) == [("joined", "grader/1", 2)]


def test_a_joiner_that_never_comes_up_does_not_end_the_run(tmp_path: Path) -> None:
    """At the start of a run the same ends fail it."""
    told = Told()

    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        world.start_s = lambda role: None
        with pytest.raises(CannotScale, match=r"grader-1 did not join: .* 3 times in a row.*The run goes on") as no:
            await supervisor.scaler.change(Wish("grader", 2), told.append)
        assert no.value.exit_code == 1
        assert "grader=1" in supervisor.scaler.counts()
        world.start_s = lambda role: 1.0
        await supervisor.scaler.change(Wish("grader", 2), told.append)
        assert members(world, "grader") == ["grader/0", "grader/2"]
        await world.finish()

    world = World(folder=tmp_path, grader=1)
    assert world.run(script).ending == "finished"
    assert recorded(tmp_path) == [("joined", "grader/2", 2)]


def test_one_change_at_a_time_and_none_while_the_run_ends(tmp_path: Path) -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        world.start_s = lambda role: None
        change = asyncio.ensure_future(supervisor.scaler.change(Wish("grader", 3), list[Any]().append))
        await asyncio.sleep(1)
        with pytest.raises(CannotScale, match="a change to grader=3 is under way"):
            await supervisor.scaler.change(Wish("grader", 1), list[Any]().append)
        await world.finish()
        for wish in (change, supervisor.scaler.change(Wish("grader", 1), list[Any]().append)):
            with pytest.raises(CannotScale, match=r"the run is ending \(finished\)") as no:
                await wish
            assert no.value.exit_code == 1

    world = World(folder=tmp_path, grader=1)
    outcome = world.run(script)
    assert (outcome.ending, outcome.reason) == ("finished", "enough")
    assert all(lives[-1].ended.done() for lives in world.lives.values()), "joiners end with the run"
