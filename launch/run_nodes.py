"""The nodes of a run as its supervisor sees them: an agent or the launcher's own process on each, the messages to them,
and what becomes of a node's processes when it is lost.

    agent ends ─▶ its processes count as dead ─▶ placed where there is room ─▶ the rest waits for the node's return
                                             └─▶ no room and no return: the run goes on smaller, or fails by name

A lost node's processes are placed anew at once, since a node that lives is certain and one that died is not; its agent
is started again as well, by the policy that holds for every process, and gives its room back (see
docs/decisions/lost_nodes.md). Called by supervisor.py.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.actors.messages import Accepted
from headrace.launch.console import Console
from headrace.launch.node_agents import NodeAgents
from headrace.launch.node_messages import NODE_ROLE, LetLeave, StartProcess, node_actor
from headrace.launch.outbox import Outbox
from headrace.launch.placement import Placement
from headrace.launch.supervisor_state import Escalate, Exit, Restart, RestartPolicy, SupervisorState
from headrace.launch.topology import ProcessPlan
from headrace.transport import Context, DeadlineExceeded, PeerLost

AGENT_START_TIMEOUT_S = 60.0
TICK_S = 0.5
LET_LEAVE_TIMEOUT_S = 30.0
MISSABLE_ROLES = ("monitor", "relay")
"""A run goes on without any of these; of every other role the last one cannot be missed. (Engines that miss their relay
are homeless themselves.)"""


class Loss(Protocol):
    """Called with the node, why, its agent's incarnation and what ran there; returns the sessions that ran there."""

    def __call__(self, node: str, why: str, incarnation: str, lost: Sequence[ProcessPlan]) -> list[int]: ...


@dataclass(slots=True)
class _Agent:
    incarnation: str
    returns: bool
    why: str = ""


class RunNodes:
    """`agents` None: the one node's supervisor lives in this process. `on_smaller` is told what the run goes on
    without, `on_failure` why it cannot."""

    def __init__(
        self,
        placement: Placement,
        *,
        agents: NodeAgents | None,
        policy: RestartPolicy,
        console: Console,
        on_loss: Loss,
        on_smaller: Callable[[str], None],
        on_failure: Callable[[Escalate], None],
    ) -> None:
        self._placement = placement
        self._agents = agents
        timeout_s = min(AGENT_START_TIMEOUT_S, policy.start_timeout_s)
        self._state = SupervisorState(replace(policy, start_timeout_s=timeout_s), "agents")
        self._console = console
        self._on_loss, self._on_smaller, self._on_failure = on_loss, on_smaller, on_failure
        self._running: dict[str, _Agent] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._awake_s = 0.0

    def start(self, context: Context) -> None:
        """Start every agent, and ask for every process, in the order of the placement."""
        self._context = context
        for node in self._placement.nodes:
            self._state.own(node, NODE_ROLE)
            self._start(node)
        for plan in (plan for node in self._placement.nodes for plan in self._placement.on(node)):
            self._outboxes[plan.node].put(StartProcess(plan))
        context.spawn(self._watch_starts(), "late agents")

    def plan(self, process: str) -> ProcessPlan:
        return self._placement.plan(process)

    def send(self, process: str, message: object) -> None:
        """To the supervisor of the node that has this process; nowhere where that node is lost."""
        outbox = self._outboxes.get(self.plan(process).node)
        if outbox is not None:
            outbox.put(message)

    @property
    def plans(self) -> list[ProcessPlan]:
        """Every process, in the order in which they came."""
        return self._placement.plans

    @property
    def staying(self) -> list[ProcessPlan]:
        """Those that are not leaving."""
        return [plan for plan in self._placement.plans if not self._placement.is_leaving(plan.name)]

    def free_slots(self) -> dict[str, list[str]]:
        """Of each living node."""
        return {node: self._placement.free_slots(node) for node in self._placement.nodes}

    def add(self, plan: ProcessPlan) -> None:
        """Have a process started that joins in mid-run. Raises ValueError where it has no place."""
        self._placement.add(plan)
        self._outboxes[plan.node].put(StartProcess(plan))

    async def let_leave(self, process: str) -> str:
        """It is not restarted from here on. Returns the incarnation that is to end, "" where there is none."""
        if any(plan.name == process for plan in self._placement.homeless):
            self._placement.remove(process)
            return ""
        self._placement.leave(process)
        node = node_actor(self.plan(process).node)
        while self.knows(process):  # a node that is lost takes it along
            with suppress(DeadlineExceeded, PeerLost):
                answer: Accepted = await self._context.ask(node, LetLeave(process), timeout_s=LET_LEAVE_TIMEOUT_S)
                return answer.incarnation
            await self._context.clock.sleep(TICK_S)
        return ""

    def remove(self, process: str) -> None:
        """It has ended for good: its slots are free. Idempotent."""
        self._placement.remove(process)

    def knows(self, process: str) -> bool:
        return any(plan.name == process for plan in self._placement.plans)

    def stop(self, message: object) -> None:
        """The run is ending: nothing is placed or started again; what was not sent is dropped for `message`."""
        self._state.stop_all()
        for outbox in self._outboxes.values():
            outbox.clear()
            outbox.put(message)

    def up(self, node: str, incarnation: str) -> None:
        agent = self._running.get(node)
        if agent is not None and agent.incarnation == incarnation:
            self._state.up(node)
            if agent.returns:
                self._console.say(f"node {node} is back")

    def silent(self, incarnation: str, reason: str) -> bool:
        """Whether it was an agent; then it is killed, with all that it owns."""
        node = next((node for node, agent in self._running.items() if agent.incarnation == incarnation), None)
        if node is not None:
            self._kill(node, reason)
        return node is not None

    # --- agents -----------------------------------------------------------------------------------------------------

    def _start(self, node: str) -> None:
        if self._agents is not None:
            incarnation = secrets.token_hex(8)
            self._running[node] = _Agent(incarnation, returns=self._state.phase(node) == "backing_off")
            ended = self._agents.start(node, incarnation)
            ended.add_done_callback(lambda ended: self._on_exit(node, ended.result()))
        self._state.started(node, self._awake_s)
        self._outboxes[node] = Outbox(self._context, node_actor(node))

    def _kill(self, node: str, why: str) -> None:
        agent = self._running[node]
        agent.why = agent.why or why
        if self._agents is not None:
            self._agents.kill(node)

    def _on_exit(self, node: str, code: int) -> None:
        agent = self._running.pop(node)
        self._outboxes.pop(node).close()
        lost = self._placement.lose(node)
        exit = Exit(code, agent.why)
        sessions = self._on_loss(node, f"the agent of node {node} ended ({exit})", agent.incarnation, lost)
        decision = self._state.exited(node, exit, self._context.clock.time())
        if isinstance(decision, Restart):
            self._console.say(
                f"node {node} is lost: its agent ended ({exit}); started again in {decision.after_s:.1f} s"
            )
            self._context.spawn(self._restart(decision, sessions), f"restart node {node}")
        elif isinstance(decision, Escalate):
            self._console.say(f"node {node} is lost: {decision.reason}")
        if not self._state.stopping:
            self._settle(f"node {node} is lost")

    async def _restart(self, decision: Restart, sessions: list[int]) -> None:
        """Not before its processes are gone: they may hold the memory of its devices."""
        assert self._agents is not None
        await self._agents.bury(sessions)
        await self._context.clock.sleep(decision.after_s)
        if self._state.phase(decision.child) == "backing_off":
            self._start(decision.child)
            self._placement.restore(decision.child)
            self._settle(f"node {decision.child} is back")

    async def _watch_starts(self) -> None:
        clock = self._context.clock
        while True:
            began_s = clock.time()
            await clock.sleep(TICK_S)
            self._awake_s += min(clock.time() - began_s, 2 * TICK_S)
            for node in self._state.late(self._awake_s):
                if node in self._running and not self._running[node].why:
                    self._kill(node, "it did not join the run in time")

    # --- places -----------------------------------------------------------------------------------------------------

    def _settle(self, occasion: str) -> None:
        for plan in self._placement.settle():
            self._console.say(f"{plan.name} is placed on {plan.node}: {occasion}")
            self._outboxes[plan.node].put(StartProcess(plan))
        unneeded = self._placement.unneeded
        homeless = [plan for plan in self._placement.homeless if plan not in unneeded]
        returning = [node for node in self._state.names() if self._state.phase(node) == "backing_off"]
        if not homeless:
            return
        names = ", ".join(plan.name for plan in homeless)
        if returning:
            self._console.say(f"no room for {names}: waiting for {', '.join(returning)}")
            return
        needed = sorted(self._placement.roles_missing() - set(MISSABLE_ROLES))
        if not needed:
            self._on_smaller(f"{names} ({occasion}, and no other has room)")
            return
        room = (
            "no node is left"
            if not self._placement.nodes
            else "no other node has the devices, or the relay, that it needs"
        )
        what = ", ".join(plan.name for plan in homeless if plan.role in needed)
        reason = f"{what} cannot be missed and has no place: {occasion}, and {room}"
        self._on_failure(Escalate(homeless[0].name, reason, "", ""))
