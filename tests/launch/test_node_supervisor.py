"""Both supervisors in virtual time, with processes that are played: who is told what, in which order, and when."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from headrace.actors.messages import RunFinished
from headrace.launch.console import Console
from headrace.launch.job import Job, Outcome
from headrace.launch.node_messages import node_actor
from headrace.launch.node_supervisor import NodeSupervisor
from headrace.launch.run_end import NAME
from headrace.launch.settings import SupervisorSettings
from headrace.launch.supervisor import Supervisor
from headrace.launch.supervisor_state import RestartPolicy
from headrace.launch.topology import ProcessPlan, plan_topology
from headrace.transport import Actor, LoopbackNetwork, Runtime, run_virtual

POLICY = RestartPolicy(start_timeout_s=20, jitter=0)
SETTINGS = SupervisorSettings(POLICY, drain_timeout_s=6, stop_stagger_s=0.5)


class PlayedProcess:
    """Announces its actors after `start_s`, ends on SIGTERM after `stop_s` (None: never), and dies when told."""

    def __init__(self, world: World, plan: ProcessPlan, incarnation: str, pid: int) -> None:
        self.plan, self.pid, self.log = plan, pid, Path("/nowhere")
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._world = world
        self.runtime = Runtime(world.network, directory=world.host.address, incarnation=incarnation)
        self._task = asyncio.ensure_future(self._live())

    async def _live(self) -> None:
        start_s = self._world.start_s(self.plan.role)
        await asyncio.sleep(1e6 if start_s is None else start_s)
        await self.runtime.start()
        for name in self.plan.actors:
            await self.runtime.add(Actor(), name)

    def die(self, code: int) -> None:
        self._task.cancel()
        self._world.network.cut(self.runtime.incarnation)
        if not self.ended.done():
            self.ended.set_result(code)

    def ask_to_stop(self) -> None:
        self._world.stopped.append(self.plan.name)
        stop_s = self._world.stop_s(self.plan.role)
        if stop_s is not None:
            asyncio.get_running_loop().call_later(stop_s, self.die, 0)


class World:
    """One node in the launcher's runtime; its processes are played."""

    def __init__(self, **counts: int) -> None:
        self.network = LoopbackNetwork()
        self.host = Runtime(self.network)
        self.counts = counts
        self.lives: dict[str, list[PlayedProcess]] = {}
        self.stopped: list[str] = []
        self.start_s: Callable[[str], float | None] = lambda role: 1.0
        self.stop_s: Callable[[str], float | None] = lambda role: 0.1
        self.console = io.StringIO()

    def start(self, plan: ProcessPlan, incarnation: str) -> PlayedProcess:
        lives = self.lives.setdefault(plan.name, [])
        lives.append(PlayedProcess(self, plan, incarnation, pid=1000 * len(self.lives) + len(lives)))
        return lives[-1]

    def kill(self, sessions: Iterable[int]) -> None:
        wanted = set(sessions)
        for one in (one for lives in self.lives.values() for one in lives if one.pid in wanted):
            one.die(-9)

    def newest(self, process: str) -> PlayedProcess:
        return self.lives[process][-1]

    async def _run(self, script: Callable[[World, Supervisor], Awaitable[None]]) -> Outcome:
        topology: dict[str, Any] = {"nodes": {"n": {"actors": {r: {"count": n} for r, n in self.counts.items()}}}}
        processes, problems = plan_topology(topology, set(self.counts))
        assert not problems
        await self.host.start()
        job = Job(Path("/nowhere"), "1.2.3", {"topology": topology}, processes, Console())
        supervisor = Supervisor(job, SETTINGS, directory=self.host.directory)
        self.host.failed.add_done_callback(lambda failed: supervisor.finish(Outcome("failed", str(failed.exception()))))
        await self.host.add(supervisor, NAME)
        node = NodeSupervisor(node="n", policy=POLICY, start=self.start, kill=self.kill)
        await self.host.add(node, node_actor("n"))
        await script(self, supervisor)
        outcome = await supervisor.run()
        await self.host.stop()
        return outcome

    def run(self, script: Callable[[World, Supervisor], Awaitable[None]]) -> Outcome:
        with redirect_stdout(self.console):
            return run_virtual(self._run(script))

    async def finish(self) -> None:
        await self.host.context.ask(NAME, RunFinished("enough"), timeout_s=10)


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
