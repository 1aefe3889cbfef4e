"""Carries out a change of a role's number of actors in a running run. Called by the run's supervisor, in the launcher.

    join:   start ─▶ announced ─▶ (generators) a token sampled: it has the newest version and serves
    leave:  not restarted ─▶ no new work for it ─▶ it ends when it has none │ leave_timeout_s ─▶ stopped ─▶ killed

What is planned is scaling.py's. One change at a time. A join that fails ends itself and not the run; a change goes on
where its asker goes away, and ends with the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from headrace.launch.checks import value_at
from headrace.launch.console import Console
from headrace.launch.membership import MembershipChange, append_change
from headrace.launch.node_messages import KillProcess, ProcessEnded, StopProcess
from headrace.launch.patience import Patience, Say
from headrace.launch.placement_checks import SINGLE_ROLES
from headrace.launch.run_nodes import RunNodes
from headrace.launch.scaling import CannotScale, Wish, check_role, plan_steps
from headrace.launch.serving_probe import first_version
from headrace.launch.settings import SupervisorSettings
from headrace.launch.supervisor_state import Exit
from headrace.launch.topology import ProcessPlan, count_actors
from headrace.transport import Context, TransportError

KILL_S = 10.0
GOOD_ORDER = str(Exit(0))
WAS_KILLED = "it was still there after it had been asked to leave"


@dataclass(frozen=True, slots=True)
class Life:
    """What the supervisor knows of a process that has one. `up`: all its actors are announced."""

    incarnation: str
    up: bool


class Run(Protocol):
    """The supervisor, as the scaler sees it."""

    @property
    def ending(self) -> str | None:
        """How the run ends, once that is decided."""

    def life(self, process: str) -> Life | None:
        """Of a process that has been started and has not ended."""

    def join(self, plan: ProcessPlan) -> None:
        """Have it started."""

    def let_go(self, incarnation: str) -> None:
        """From now on nobody gives that process new work."""

    def forget(self, process: str) -> None:
        """It has ended for good."""


class Scaler:
    def __init__(
        self,
        run: Run,
        nodes: RunNodes,
        *,
        config: Mapping[str, Any],
        folder: Path,
        console: Console,
        settings: SupervisorSettings,
        admit: Callable[[Sequence[ProcessPlan]], None],
    ) -> None:
        """`admit` raises ValueError where these processes must not run beside each other."""
        self._run = run
        self._nodes = nodes
        self._config = config
        self._folder = folder
        self._console = console
        self._settings = settings
        self._admit = admit
        self._under_way: Wish | None = None
        self._joining: dict[str, str] = {}  # process → why it will not come up, "" so far
        self._leaving: dict[str, str] = {}  # process → how it ended, "" so far
        self._next_index = Counter[str]()
        self._patience: Patience | None = None

    def begin(self, context: Context) -> None:
        self._context = context
        self._began_s = context.clock.time()
        self._patience = Patience(context.clock, self._refuse_where_ending)
        for plan in self._nodes.plans:
            self._note_indices(plan)

    # --- what the supervisor tells ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """A process has come up or ended, or the run is ending."""
        if self._patience is not None:
            self._patience.wake()

    def ended(self, message: ProcessEnded) -> bool:
        """Whether that end is a change's own affair: then it is no failure of the run, whatever its node decided."""
        process = message.process
        if process in self._leaving:
            self._leaving[process] = str(message.exit)
        elif process in self._joining and message.next == "escalate":
            self._joining[process] = message.reason
        else:
            return False
        self.wake()
        return True

    def lost(self, processes: Iterable[str], why: str) -> None:
        """They ended with their node."""
        self._leaving.update({process: why for process in processes if process in self._leaving})
        self.wake()

    # --- what a user asks -------------------------------------------------------------------------------------------

    def counts(self) -> str:
        """The actors of each role now, a line each."""
        lines = []
        staying = self._nodes.staying
        for role, count in count_actors(tuple(staying)).items():
            plans = [plan for plan in staying if plan.role == role]
            names = " ".join(name for plan in plans for name in plan.actors)
            nodes = ", ".join(sorted({plan.node for plan in plans}))
            fixed = "   (always one)" if role in SINGLE_ROLES else ""
            lines.append(f"{role}={count}".ljust(22) + f" on {nodes}: {names}{fixed}")
        return "\n".join(lines)

    async def change(self, wish: Wish, say: Say) -> str:
        """Until the role has that many actors, and they serve; returns that. Raises CannotScale."""
        if self._under_way is not None:
            other = f"{self._under_way.role}={self._under_way.count}"
            raise CannotScale.now(f"a change to {other} is under way in this run; say it again when that is done")
        self._refuse_where_ending()
        check_role(self._config, wish)
        next_index = self._next_index[wish.role]
        staying = self._nodes.staying
        steps = plan_steps(self._config, staying, self._nodes.free_slots(), wish, next_index=next_index)
        if not (steps.joining or steps.leaving):
            return f"{wish.role}={wish.count} already: nothing changes"
        try:
            self._admit([*self._nodes.plans, *steps.joining])
        except ValueError as error:
            raise CannotScale(f"{wish.role}={wish.count}: {error}") from error

        def tell(text: str) -> None:
            self._console.say(text)
            say(text)

        self._under_way = wish
        try:
            await self._join(steps.joining, tell)
            await self._leave(steps.leaving, tell)
        finally:
            self._under_way = None
        return f"{wish.role}={wish.count}: done"

    # --- joining ----------------------------------------------------------------------------------------------------

    async def _join(self, plans: Sequence[ProcessPlan], say: Say) -> None:
        for plan in plans:
            devices = f" with device {', '.join(plan.devices)}" if plan.devices else ""
            say(f"{' '.join(plan.actors)} joins as {plan.name} on {plan.node}{devices}")
            self._note_indices(plan)
            self._joining[plan.name] = ""
            self._run.join(plan)
        await _each([self._join_one(plan, say) for plan in plans])

    async def _join_one(self, plan: ProcessPlan, say: Say) -> None:
        try:
            await self._until_up(plan, say)
            serves = plan.role == self._generators()
            detail = await self._until_it_serves(plan, say) if serves else "it is up"
            self._record("joined", plan, detail)
            say(f"{plan.name} has joined: {detail}")
        finally:
            del self._joining[plan.name]

    async def _until_up(self, plan: ProcessPlan, say: Say) -> None:
        """Raises CannotScale where it does not come up; then it is not there any more."""
        policy = self._settings.restart_policy
        timeout_s = policy.start_timeout_s * (policy.max_failed_starts + 1)
        name = plan.name
        came = await self._until(
            lambda: bool(self._joining[name]) or self._is_up(name), timeout_s, say, f"{name} to be up"
        )
        if came and not self._joining[name]:
            return
        why = self._joining[name] or f"it was not up within {timeout_s:g} s"
        await self._remove(name, say)
        log = self._folder / "logs" / f"{name}.log"
        raise CannotScale.now(f"{name} did not join: {why}; see {log}. The run goes on without it")

    def _is_up(self, process: str) -> bool:
        life = self._run.life(process)
        return life is not None and life.up

    def _generators(self) -> str | None:
        """The role that serves nothing before the parameter server has given it the newest version."""
        if value_at(self._config, "parameter_server._target_") is None:
            return None
        return str(value_at(self._config, "parameter_server.generators") or "generator")

    async def _until_it_serves(self, plan: ProcessPlan, say: Say) -> str:
        """One that dies meanwhile is started again, and asked again."""
        name, timeout_s = plan.name, self._settings.restart_policy.start_timeout_s
        asks = [first_version(self._context, actor) for actor in plan.actors]
        probe = asyncio.ensure_future(asyncio.gather(*asks))
        probe.add_done_callback(lambda _: self.wake())
        try:
            served = await self._until(
                lambda: probe.done() or bool(self._joining[name]), timeout_s, say, f"{name} to serve"
            )
            if self._joining[name]:
                await self._until_up(plan, say)
            if not served:
                raise CannotScale.now(f"{name} is up but has served nothing within {timeout_s:g} s; see its log")
            return f"it serves version {max(probe.result())}"
        except TransportError as error:
            raise CannotScale.now(f"{name} is up but does not serve: {error}") from error
        finally:
            probe.cancel()

    # --- leaving ----------------------------------------------------------------------------------------------------

    async def _leave(self, plans: Sequence[ProcessPlan], say: Say) -> None:
        limit = f"it has {self._settings.leave_timeout_s:g} s for what it has in hand"
        for plan in plans:
            say(f"{' '.join(plan.actors)} leaves with {plan.name} on {plan.node}: no new work for it; {limit}")
        await _each([self._leave_one(plan, say) for plan in plans])

    async def _leave_one(self, plan: ProcessPlan, say: Say) -> None:
        how = await self._remove(plan.name, say)
        self._record("left", plan, how)
        say(f"{plan.name} has left: {how}")

    async def _remove(self, process: str, say: Say) -> str:
        """How it went; the process is gone, and its slots are free."""
        self._leaving[process] = ""
        try:
            incarnation = await self._nodes.let_leave(process)
            how = await self._end(process, incarnation, say) if incarnation else "it was not running"
            self._run.forget(process)
            return how
        finally:
            del self._leaving[process]

    async def _end(self, process: str, incarnation: str, say: Say) -> str:
        async def gone(timeout_s: float, what: str) -> bool:
            return await self._until(lambda: bool(self._leaving[process]), timeout_s, say, f"{process} {what}")

        settings = self._settings
        if self._is_up(process):
            self._run.let_go(incarnation)
            if await gone(settings.leave_timeout_s, "to finish what it has"):
                ended = self._leaving[process]
                return f"it finished what it had ({ended})" if ended == GOOD_ORDER else f"it died ({ended})"
            say(f"{process} still has work after {settings.leave_timeout_s:g} s: it is stopped, others take that over")
        self._nodes.send(process, StopProcess(process))
        if await gone(settings.drain_timeout_s, "to stop"):
            return f"it was stopped ({self._leaving[process]})"
        self._nodes.send(process, KillProcess(process, incarnation, WAS_KILLED))
        if await gone(KILL_S, "to be gone"):
            return self._leaving[process]
        raise CannotScale.now(f"{process} outlives SIGKILL: it hangs in the kernel")

    # --- the rest ---------------------------------------------------------------------------------------------------

    async def _until(self, fact: Callable[[], bool], timeout_s: float, say: Say, what: str) -> bool:
        assert self._patience is not None, "begin comes first"
        return await self._patience.until(fact, timeout_s, say, what)

    def _refuse_where_ending(self) -> None:
        if self._run.ending is not None:
            raise CannotScale.now(f"the run is ending ({self._run.ending})")

    def _note_indices(self, plan: ProcessPlan) -> None:
        highest = max(int(name.partition("/")[2]) for name in plan.actors)
        self._next_index[plan.role] = max(self._next_index[plan.role], highest + 1)

    def _record(self, event: Literal["joined", "left"], plan: ProcessPlan, detail: str) -> None:
        count = count_actors(tuple(self._nodes.staying)).get(plan.role, 0)
        time_s = round(self._context.clock.time() - self._began_s, 3)
        try:
            append_change(
                self._folder,
                MembershipChange(time_s, event, plan.name, plan.actors, plan.role, plan.node, count, detail),
            )
        except OSError as error:  # a full disk must not stop the change
            self._console.error(f"headrace: {plan.name} {event}, which could not be written down: {error}")


async def _each(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Each to its end; then the first of their errors is raised."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
