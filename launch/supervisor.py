"""The run's supervisor: it has the processes placed and started, knows who is up, tells everybody who died, and decides
when the run ends and how. An actor in the launcher's process.

    start ─▶ all announced ─▶ RunFinished │ signal │ a loss that nobody could cure ─▶ stop in reverse order ─▶ the end

The nodes' supervisors (node_supervisor.py) start, restart and kill; run_nodes.py knows where. Who ends the run: the
dispatcher's RunFinished, a signal to the launcher (ending_signals.py), or an escalation; the first wins and a second
signal skips the waiting. Called by local.py.
"""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from headrace.actors.messages import Accepted, LearnerStepped, RunFinished
from headrace.launch.ending_signals import outcome_of
from headrace.launch.for_console import packages_of
from headrace.launch.job import Job, Outcome
from headrace.launch.log_follower import LogFollower
from headrace.launch.logs import last_lines
from headrace.launch.node_agents import NodeAgents
from headrace.launch.node_messages import (
    NODE_ROLE,
    KillProcess,
    ProcessEnded,
    ProcessStarted,
    RestartNothing,
    StopProcess,
)
from headrace.launch.placement import Placement
from headrace.launch.placement_checks import bonds_of
from headrace.launch.run_nodes import RunNodes
from headrace.launch.scaler import Life, Scaler
from headrace.launch.settings import SupervisorSettings
from headrace.launch.stagnation import Stagnation
from headrace.launch.start_order import in_start_order
from headrace.launch.supervisor_state import Escalate
from headrace.launch.topology import ProcessPlan, devices_of
from headrace.transport import Actor, Context, PeerUp, handles

PROGRESS_S = 5.0
LEARNER = "learner"
"""who says how far training is; a run without one is not judged by that"""


class Directory(Protocol):
    """Of transport's DirectoryService, what a supervisor uses."""

    on_silence: Callable[[str, str], None] | None

    def process_leaving(self, incarnation: str) -> None: ...

    def process_down(self, incarnation: str, reason: str) -> None: ...


@dataclass(slots=True)
class _Life:
    """One incarnation of a process, from its start to its end. `to_come`: its actors that are not announced yet."""

    started: ProcessStarted
    to_come: set[str]


class Supervisor(Actor):
    def __init__(
        self,
        job: Job,
        settings: SupervisorSettings,
        *,
        directory: Directory,
        agents: NodeAgents | None = None,
        admit: Callable[[Sequence[ProcessPlan]], None] = lambda processes: None,
    ) -> None:
        """`directory` is this process's; `agents` None means that the topology's one node is supervised by an actor of
        this process. `admit` raises ValueError where processes must not run beside each other."""
        self._job = job
        self._settings = settings
        self._directory = directory
        self._agents = agents
        self._console = job.console
        processes = in_start_order(job.processes, settings.start_order)
        self._nodes = RunNodes(
            Placement(processes, devices_of(job.config["topology"]), bonds_of(job.config)),
            agents=agents,
            policy=settings.agent_policy,
            console=job.console,
            on_loss=self._on_loss,
            on_smaller=self._go_on_without,
            on_failure=self._fail,
        )
        self.scaler = Scaler(
            self,
            self._nodes,
            config=job.config,
            folder=job.folder,
            console=job.console,
            settings=settings,
            admit=admit,
        )
        self._stagnation = Stagnation(settings.max_restarts_without_step)
        self._trains = any(plan.role == LEARNER for plan in processes)
        self._logs = LogFollower(job.console, packages_of(job.config))
        self._lives: dict[str, _Life] = {}
        self._announced: dict[str, str] = {}  # actor → incarnation
        self._never_up = {plan.name for plan in processes}
        self._starts: Counter[str] = Counter()
        self._missing: list[str] = []
        self._changed = asyncio.Event()
        self._hurry = False
        self._end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    # --- the run ----------------------------------------------------------------------------------------------------

    async def on_start(self, context: Context) -> None:
        if self._end.done():
            return
        self._began_s = context.clock.time()
        self._directory.on_silence = self._on_silence
        for role in (NODE_ROLE, *{plan.role for plan in self._nodes.plans}):
            context.watch(role)
        self.scaler.begin(context)
        context.spawn(self._logs.run(context), "logs")
        context.spawn(self._tell_progress(), "progress")
        self._nodes.start(context)

    async def run(self) -> Outcome:
        """To the end of the run; when it returns, its processes have ended or are left to be killed (`close`)."""
        outcome = await asyncio.shield(self._end)
        self._console.say(f"ending the run ({outcome.ending}): {outcome.reason.splitlines()[0]}")
        await self._stop_all()
        without = f"; it went on without {', '.join(self._missing)}" if self._missing else ""
        restarts = {process: starts - 1 for process, starts in self._starts.items() if starts > 1}
        return replace(outcome, reason=outcome.reason + without, restarts=restarts)

    async def close(self) -> None:
        """Nothing is alive on any node that has an agent when this returns."""
        self._nodes.stop(RestartNothing())
        if self._agents is not None:
            await self._agents.close(at_once=self._hurry)
            await self._agents.bury([life.started.session for life in self._lives.values()])

    def show_logs(self) -> None:
        """Everything that processes left behind; call it when none is alive."""
        self._logs.drain_all()

    def interrupt(self, number: signal.Signals) -> None:
        """A signal to the launcher: the first ends the run in order, the second at once."""
        if self._end.done():
            self._console.say(f"{number.name} again: stopping at once")
            self._hurry = True
            self._changed.set()
        self.finish(outcome_of(number))

    def finish(self, outcome: Outcome) -> None:
        """The run ends so, unless it is ending already."""
        if not self._end.done():
            self._end.set_result(outcome)
            self.scaler.wake()

    @handles(RunFinished)
    async def finished(self, message: RunFinished) -> Accepted:
        self.finish(Outcome("finished", message.reason))
        return Accepted()

    @handles(LearnerStepped)
    async def learner_stepped(self, message: LearnerStepped) -> None:
        self._stagnation.stepped(message.stage, message.step)

    # --- who is there -----------------------------------------------------------------------------------------------

    @handles(ProcessStarted)
    async def process_started(self, message: ProcessStarted) -> Accepted:
        plan = self._nodes.plan(message.process) if self._nodes.knows(message.process) else None
        if plan is not None and plan.node == message.node:  # else its node was lost meanwhile
            self._console.say(f"starting {message.process} on {message.node}")
            self._starts[message.process] += 1
            self._logs.follow(message.process, Path(message.log))
            up = {name for name in plan.actors if self._announced.get(name) == message.incarnation}
            self._lives[message.process] = _Life(message, set(plan.actors) - up)
            if self._end.done():
                self._nodes.send(message.process, StopProcess(message.process))
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        role, _, rest = message.name.partition("/")
        if role == NODE_ROLE:
            self._nodes.up(rest, message.incarnation)
        self._announced[message.name] = message.incarnation
        for process, life in self._lives.items():
            if life.started.incarnation == message.incarnation and message.name in life.to_come:
                life.to_come.discard(message.name)
                if not life.to_come:
                    self._on_up(process)

    def _on_up(self, process: str) -> None:
        self.scaler.wake()
        if process not in self._never_up:
            self._console.say(f"{process} is up again")
            return
        self._never_up.discard(process)
        if not self._never_up:
            self._console.say(f"all actors are up ({self.context.clock.time() - self._began_s:.1f} s)")

    async def _tell_progress(self) -> None:
        while self._never_up:
            await self.context.clock.sleep(PROGRESS_S)
            if self._never_up and not self._end.done():
                seconds = self.context.clock.time() - self._began_s
                self._console.say(f"waiting for {', '.join(sorted(self._never_up))} ({seconds:.0f} s)")

    # --- who is not -------------------------------------------------------------------------------------------------

    @handles(ProcessEnded)
    async def process_ended(self, message: ProcessEnded) -> Accepted:
        process, exit = message.process, message.exit
        self._directory.process_down(message.incarnation, f"{process} ended ({exit})")
        life = self._lives.get(process)
        if life is None or life.started.incarnation != message.incarnation:
            return Accepted()
        del self._lives[process]
        self._changed.set()
        self._logs.drain(process)
        if self.scaler.ended(message):
            self._console.say(f"{process} ended ({exit})")
        elif message.next == "restart":
            again = f"it is started again in {message.restart_s:.1f} s (attempt {message.attempt})"
            self._console.say(f"{process} ended ({exit}); {again}")
            in_vain = self._stagnation.restarted(process, exit) if self._trains else None
            if in_vain is not None:
                self._fail(in_vain)
        elif message.next == "escalate":
            self._fail(Escalate(process, message.reason, message.cause, message.last_lines))
        return Accepted()

    def _on_silence(self, incarnation: str, reason: str) -> None:
        """The directory has no sign of life from a process: stopped, or an event loop that hangs. The rest of the run
        goes on without it already, so it ends here too, and counts as any that ended."""
        if self._nodes.silent(incarnation, reason):
            return
        for process, life in self._lives.items():
            if life.started.incarnation == incarnation:
                self._nodes.send(process, KillProcess(process, incarnation, reason))

    def _on_loss(self, node: str, why: str, incarnation: str, lost: Sequence[ProcessPlan]) -> list[int]:
        """A node's agent is gone, and with it all that it owned."""
        self._directory.process_down(incarnation, why)
        names = {plan.name for plan in lost}
        dead = {self._announced[actor] for plan in lost for actor in plan.actors if actor in self._announced}
        lives = [self._lives.pop(process) for process in list(self._lives) if process in names]
        for one in {*dead, *(life.started.incarnation for life in lives)}:
            self._directory.process_down(one, why)
        for process in names:
            self._logs.drain(process)
        self._changed.set()
        self.scaler.lost(names, why)
        return [life.started.session for life in lives]

    def _go_on_without(self, what: str) -> None:
        self._console.say(f"going on without {what}")
        self._missing.append(what)

    def _fail(self, failure: Escalate) -> None:
        log = self._job.folder / "logs" / f"{failure.cause or failure.child}.log"
        lines = failure.last_lines or last_lines(log)
        self.finish(Outcome("failed", f"{failure.reason}\n--- last lines of {log} ---\n{lines}"))

    # --- who joins and leaves in mid-run (scaler.py) ----------------------------------------------------------------

    @property
    def ending(self) -> str | None:
        return self._end.result().ending if self._end.done() else None

    def life(self, process: str) -> Life | None:
        life = self._lives.get(process)
        return None if life is None else Life(life.started.incarnation, up=not life.to_come)

    def join(self, plan: ProcessPlan) -> None:
        self.context.watch(plan.role)
        self._nodes.add(plan)

    def let_go(self, incarnation: str) -> None:
        self._directory.process_leaving(incarnation)

    def forget(self, process: str) -> None:
        self._nodes.remove(process)
        self._never_up.discard(process)

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        """Each process in reverse order: SIGTERM, a moment to end, then the next; all have until the drain deadline."""
        clock, settings = self.context.clock, self._settings
        deadline_s = clock.time() + settings.drain_timeout_s
        self._nodes.stop(RestartNothing())
        for process in (plan.name for plan in reversed(in_start_order(self._nodes.plans, settings.start_order))):
            if process in self._lives and not self._hurry:
                self._nodes.send(process, StopProcess(process))
                until_s = min(deadline_s, clock.time() + settings.stop_stagger_s)
                await self._until(lambda process=process: process not in self._lives, until_s)  # type: ignore[misc]
        await self._until(lambda: not self._lives, deadline_s)
        if self._lives:
            why = "asked to stop at once" if self._hurry else "still there at the deadline"
            self._console.say(f"killing {', '.join(sorted(self._lives))}: {why}")

    async def _until(self, fact: Callable[[], bool], deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s - self.context.clock.time()):
                while not fact() and not self._hurry:
                    self._changed.clear()
                    await self._changed.wait()


def launcher_failure(what: str, error: BaseException) -> Outcome:
    """The outcome of an error in the launcher's own process, with its traceback."""
    return Outcome(
        "failed", f"{what} raised {type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
    )
