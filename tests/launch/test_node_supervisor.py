"""Both supervisors in virtual time, with processes that are played: who is told what, in which order, and when."""

from __future__ import annotations

import asyncio

from played_world import World

from headrace.launch.supervisor import Supervisor


def test_the_end_asks_in_reverse_order_and_nobody_is_killed() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        await world.finish()

    world = World(learner=1, monitor=1, dispatcher=1, environment=2)
    outcome = world.run(script)
    assert (outcome.ending, outcome.reason, outcome.restarts) == ("finished", "enough", {})
    assert world.stopped == ["learner-0", "environment-1", "environment-0", "dispatcher-0", "monitor-0"]
    assert "all actors are up (1.0 s)" in world.console.getvalue()
    assert "killing" not in world.console.getvalue()


def test_one_that_does_not_stop_is_killed_at_the_deadline_and_delays_nobody() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        world.stop_s = lambda role: None if role == "learner" else 0.1
        await asyncio.sleep(5)
        await world.finish()

    world = World(learner=1, monitor=1)
    world.run(script)
    assert world.stopped == ["learner-0", "monitor-0"]
    assert "killing learner-0: still there at the deadline" in world.console.getvalue()
    assert world.newest("learner-0").ended.result() == -9


def test_only_what_died_is_started_again_and_its_first_life_is_down() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        world.newest("grader-1").die(-9)
        await asyncio.sleep(0.01)
        assert world.host.context.group("grader").members() == ["grader/0"]
        await asyncio.sleep(5)
        assert world.host.context.group("grader").members() == ["grader/0", "grader/1"]
        await world.finish()

    world = World(grader=2)
    assert world.run(script).restarts == {"grader-1": 1}
    assert [len(lives) for lives in world.lives.values()] == [1, 2]
    assert "grader-1 ended (signal 9); it is started again in 0.5 s (attempt 1)" in world.console.getvalue()


def test_a_start_that_hangs_counts_as_an_end_and_three_fail_the_run() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        world.start_s = lambda role: None

    world = World(grader=1)
    outcome = world.run(script)
    assert outcome.ending == "failed"
    assert "grader-0 ended before it was up, 3 times in a row" in outcome.reason
    assert "killed: it was not up within launch.start_timeout_s=20" in outcome.reason
    assert len(world.lives["grader-0"]) == 3


def test_nothing_is_started_again_while_the_run_ends() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        world.newest("grader-0").die(1)  # its restart is due in 0.5 s
        await asyncio.sleep(0.1)
        world.stop_s = lambda role: 3.0
        await world.finish()

    world = World(grader=2)
    world.run(script)
    assert [len(lives) for lives in world.lives.values()] == [1, 1]


def test_a_silent_process_is_killed_and_started_again() -> None:
    async def script(world: World, supervisor: Supervisor) -> None:
        await asyncio.sleep(5)
        incarnation = world.newest("grader-0").runtime.incarnation
        world.host.directory.process_down(incarnation, "no heartbeat for 60.0 s")
        assert world.host.directory.on_silence is not None
        world.host.directory.on_silence(incarnation, "no heartbeat for 60.0 s")
        await asyncio.sleep(5)
        await world.finish()

    world = World(grader=1)
    assert world.run(script).restarts == {"grader-0": 1}
    assert "grader-0 ended (killed: no heartbeat for 60.0 s)" in world.console.getvalue()
