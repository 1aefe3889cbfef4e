"""A run whose processes are played, in virtual time: both supervisors are real, the node's children are not."""

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
    """Announces its actors after `start_s`, ends on SIGTERM after `stop_s` (None: never), ends when it has left the run
    as it was asked to, and dies when told."""

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
            await self.runtime.add(self._world.actor(name), name)
        await self.runtime.left
        self.die(0)

    def die(self, code: int) -> None:
        if self._task is not asyncio.current_task():
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
    """One node in the launcher's runtime; its processes are played. `parts`: further root keys of the configuration;
    `folder`: the run's."""

    def __init__(self, *, folder: Path = Path("/nowhere"), parts: dict[str, Any] | None = None, **counts: int) -> None:
        self.folder = folder
        self.parts = parts or {}
        self.network = LoopbackNetwork()
        self.host = Runtime(self.network)
        self.counts = counts
        self.lives: dict[str, list[PlayedProcess]] = {}
        self.stopped: list[str] = []
        self.start_s: Callable[[str], float | None] = lambda role: 1.0
        self.stop_s: Callable[[str], float | None] = lambda role: 0.1
        self.actor: Callable[[str], Actor] = lambda name: Actor()
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
        roles = {role: {"_target_": "a.B"} for role in self.counts}
        config = {"topology": topology, **roles, **self.parts}
        job = Job(self.folder, "1.2.3", config, processes, Console())
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
