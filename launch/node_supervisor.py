"""The supervisor of one node: it starts the node's processes, learns of their ends at once, restarts them, and kills
them. The I/O around supervisor_state.py, as an actor.

It hosts nothing of the run itself. With one node it lives in the launcher's process; with several, in an agent process
on each node (node.py). It decides about restarts alone; what it cannot cure it reports, and the run's supervisor
(supervisor.py) decides. Where it stops, its processes are killed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headrace.actors.messages import Accepted
from headrace.launch.logs import last_lines
from headrace.launch.node_messages import (
    KillProcess,
    LetLeave,
    ProcessEnded,
    ProcessStarted,
    RestartNothing,
    StartProcess,
    StopProcess,
)
from headrace.launch.outbox import Outbox
from headrace.launch.processes import kill_sessions
from headrace.launch.run_end import NAME as SUPERVISOR
from headrace.launch.supervisor_state import Decision, Escalate, Exit, Restart, RestartPolicy, SupervisorState
from headrace.launch.topology import ProcessPlan
from headrace.transport import Actor, Context, PeerUp, handles

TICK_S = 0.5
REAP_S = 1.0
REPORTED_CHARACTERS = 8_000
"""of the end of a log: a report is one small message"""


class RunningProcess(Protocol):
    """What child.py makes of a process."""

    ended: asyncio.Future[int]
    log: Path

    @property
    def pid(self) -> int: ...

    def ask_to_stop(self) -> None: ...


@dataclass(slots=True)
class _Life:
    """One incarnation of a process. `to_come`: its actors that have not been announced; `why`: it was killed."""

    incarnation: str
    child: RunningProcess
    to_come: set[str]
    why: str = ""


class NodeSupervisor(Actor):
    def __init__(
        self,
        *,
        node: str,
        policy: RestartPolicy,
        start: Callable[[ProcessPlan, str], RunningProcess],
        kill: Callable[[Iterable[int]], object] = kill_sessions,
        seed: int = 0,
    ) -> None:
        """`start` makes a process with a given incarnation; `kill` ends sessions, whatever is left in them."""
        self._node = node
        self._policy = policy
        self._start_child = start
        self._kill_sessions = kill
        self._state = SupervisorState(policy, f"{seed}/{node}")
        self._plans: dict[str, ProcessPlan] = {}
        self._lives: dict[str, _Life] = {}
        self._awake_s = 0.0  # a clock that stands still while this process is stopped

    async def on_start(self, context: Context) -> None:
        self._reports = Outbox(context, SUPERVISOR)
        context.spawn(self._watch_starts(), "late starts")

    async def on_stop(self) -> None:
        self._state.stop_all()
        children = [life.child for life in self._lives.values()]
        await self.context.run_blocking(self._kill_sessions, [child.pid for child in children])
        if children:
            await asyncio.wait([child.ended for child in children], timeout=REAP_S)

    # --- what the run's supervisor asks for -------------------------------------------------------------------------

    @handles(StartProcess)
    async def start_process(self, message: StartProcess) -> Accepted:
        plan = message.plan
        if self._state.phase(plan.name) in (None, "ended") and not self._state.stopping:
            self._refuse_shared_devices(plan)
            self._plans[plan.name] = plan
            self._state.own(plan.name, plan.role)
            self._start(plan)
            self.context.watch(plan.role)
        return Accepted()

    @handles(StopProcess)
    async def stop_process(self, message: StopProcess) -> Accepted:
        if self._state.phase(message.process) is not None:
            self._state.stop(message.process)
        life = self._lives.get(message.process)
        if life is not None:
            life.child.ask_to_stop()
        return Accepted()

    @handles(LetLeave)
    async def let_leave(self, message: LetLeave) -> Accepted:
        if self._state.phase(message.process) is not None:
            self._state.stop(message.process)
        life = self._lives.get(message.process)
        return Accepted("" if life is None else life.incarnation)

    @handles(KillProcess)
    async def kill_process(self, message: KillProcess) -> Accepted:
        life = self._lives.get(message.process)
        if life is not None and life.incarnation == message.incarnation:
            self._kill(life, message.why)
        return Accepted()

    @handles(RestartNothing)
    async def restart_nothing(self, message: RestartNothing) -> Accepted:
        self._state.stop_all()
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        for process, life in self._lives.items():
            if life.incarnation == message.incarnation:
                life.to_come.discard(message.name)
                if not life.to_come:
                    self._state.up(process)

    # --- lives and ends ---------------------------------------------------------------------------------------------

    def _start(self, plan: ProcessPlan) -> None:
        incarnation = secrets.token_hex(8)
        child = self._start_child(plan, incarnation)
        life = self._lives[plan.name] = _Life(incarnation, child, set(plan.actors))
        self._state.started(plan.name, self._awake_s)
        self._reports.put(ProcessStarted(self._node, plan.name, incarnation, child.pid, str(child.log)))
        child.ended.add_done_callback(lambda ended: self._on_exit(plan.name, life, ended.result()))

    def _kill(self, life: _Life, why: str) -> None:
        life.why = life.why or why
        self.context.spawn(self.context.run_blocking(self._kill_sessions, [life.child.pid]), "kill")

    def _on_exit(self, process: str, life: _Life, code: int) -> None:
        """Report first: everybody who waits for it is told by the run's supervisor."""
        del self._lives[process]
        exit = Exit(code, life.why, last_lines(life.child.log)[-REPORTED_CHARACTERS:])
        decision = self._state.exited(process, exit, self.context.clock.time())
        self._reports.put(_report(process, life.incarnation, exit, decision))
        self.context.spawn(self._after(process, life, decision), f"after {process}")

    async def _after(self, process: str, life: _Life, decision: Decision) -> None:
        """What it started and left behind ends before it is started again."""
        await self.context.run_blocking(self._kill_sessions, [life.child.pid])
        if isinstance(decision, Restart):
            await self.context.clock.sleep(decision.after_s)
            if self._state.phase(process) == "backing_off":
                self._start(self._plans[process])

    async def _watch_starts(self) -> None:
        """One that hangs before it is up counts as ended."""
        why = f"it was not up within launch.start_timeout_s={self._policy.start_timeout_s:g}"
        clock = self.context.clock
        while True:
            began_s = clock.time()
            await clock.sleep(TICK_S)
            self._awake_s += min(clock.time() - began_s, 2 * TICK_S)
            for process in self._state.late(self._awake_s):
                if not self._lives[process].why:
                    self._kill(self._lives[process], why)

    def _refuse_shared_devices(self, plan: ProcessPlan) -> None:
        for other in self._lives:
            shared = set(plan.devices) & set(self._plans[other].devices)
            if shared:
                raise ValueError(f"{plan.name} was given device {min(shared)} of {self._node}, which {other} has")


def _report(process: str, incarnation: str, exit: Exit, decision: Decision) -> ProcessEnded:
    if isinstance(decision, Restart):
        return ProcessEnded(process, incarnation, exit, "restart", decision.after_s, decision.attempt)
    if isinstance(decision, Escalate):
        return ProcessEnded(
            process, incarnation, exit, "escalate",
            reason=decision.reason, cause=decision.cause, last_lines=decision.last_lines,
        )  # fmt: skip
    return ProcessEnded(process, incarnation, exit, "nothing")
