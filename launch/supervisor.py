"""Starts the processes of a run, watches them, restarts what may be restarted, and ends them all. The I/O around
supervisor_state.py.

    start in order ─▶ all announced ─▶ RunFinished │ signal │ fatal loss ─▶ stop in reverse order ─▶ kill what is left

Who ends the run: the dispatcher's RunFinished, SIGINT or SIGTERM to the launcher, or a process whose loss is fatal;
the first wins and a second signal skips the waiting. When `run` returns no process of the run is alive. Called by
local.py.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Coroutine, Mapping
from typing import Any

from headrace.launch.child import Child
from headrace.launch.environ import check_distinct_devices, child_environment
from headrace.launch.for_console import ForConsole
from headrace.launch.job import Job, Outcome
from headrace.launch.logs import LogTail, last_lines
from headrace.launch.run_network import RunNetwork
from headrace.launch.settings import SupervisorSettings
from headrace.launch.start_order import in_start_order
from headrace.launch.supervisor_state import Exit, FailRun, Ignore, Restart, SupervisorState
from headrace.launch.undertaker import Undertaker

POLL_S = 0.2
PROGRESS_S = 5.0


class Supervisor:
    def __init__(
        self,
        job: Job,
        settings: SupervisorSettings,
        *,
        network: RunNetwork,
        undertaker: Undertaker,
        environment: Mapping[str, str],
    ) -> None:
        """`network.runtime` hosts the directory and has been started; `environment` is what children's variables
        are made from."""
        self._job = job
        self._settings = settings
        self._runtime = network.runtime
        self._network = network
        self._undertaker = undertaker
        self._console = job.console
        self._plans = {plan.name: plan for plan in in_start_order(job.processes, settings.start_order)}
        self._environments = {p.name: child_environment(environment, p, offline=True) for p in self._plans.values()}
        check_distinct_devices([(p.name, p.node, self._environments[p.name]) for p in self._plans.values()])
        roles = {plan.name: plan.role for plan in self._plans.values()}
        self._state = SupervisorState(roles, settings.restart_policy)
        self._children: dict[str, Child] = {}
        self._incarnations: dict[str, str] = {}
        self._silent: dict[str, str] = {}  # incarnation → reason
        self._tails: dict[str, LogTail] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Outcome] = loop.create_future()
        self._hurry = asyncio.Event()

    # --- the run ----------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Returns when nothing of the run is alive."""
        try:
            self._watch_runtime()
            self._background(self._follow_logs(), "logs")
            for process in self._plans:
                self._start(process)
            self._background(self._await_readiness(), "readiness")
            outcome = await asyncio.shield(self._end)
            self._console.say(f"ending the run ({outcome.ending}): {outcome.reason.splitlines()[0]}")
            await self._stop_all()
            return outcome
        finally:
            self._kill_all()
            for task in self._tasks:
                task.cancel()
            for tail in self._tails.values():
                tail.drain()

    def finished(self, reason: str) -> None:
        """The dispatcher says that the run is done."""
        self._finish(Outcome("finished", reason))

    def interrupt(self, number: signal.Signals) -> None:
        """SIGINT or SIGTERM to the launcher: the first ends the run in order, the second at once."""
        if self._end.done():
            self._console.say(f"{number.name} again: stopping at once")
            self._hurry.set()
        ending = Outcome("interrupted" if number is signal.SIGINT else "terminated", f"{number.name} to the launcher")
        self._finish(ending)

    def _finish(self, outcome: Outcome) -> None:
        if not self._end.done():
            self._end.set_result(outcome)

    # --- starting ---------------------------------------------------------------------------------------------------

    def _start(self, process: str) -> None:
        if self._end.done():
            return
        plan = self._plans[process]
        log = self._job.folder / "logs" / f"{process}.log"
        incarnation = secrets.token_hex(8)
        self._tails.setdefault(process, LogTail(process, log, ForConsole(self._console.line)))
        self._console.say(f"starting {process} on {plan.node}")
        child = Child(
            [
                sys.executable,
                "-m",
                "headrace.launch.process",
                str(self._job.folder),
                process,
                str(self._network.launcher_pid),
            ],
            environment=self._environments[process],
            log=log,
            first_line=self._network.joining(incarnation).to_line(),
        )
        self._undertaker.watch_session(child.pid)
        self._children[process] = child
        self._incarnations[process] = incarnation
        self._state.started(process)
        child.ended.add_done_callback(lambda ended: self._on_exit(process, ended.result()))

    async def _await_readiness(self) -> None:
        """Progress until every actor has been announced once; fails the run where that takes too long."""
        started_s = time.monotonic()
        missing = {name for plan in self._plans.values() for name in plan.actors}
        next_word_s = started_s + PROGRESS_S
        while missing:
            await asyncio.sleep(POLL_S)
            for role in {name.partition("/")[0] for name in missing}:
                missing -= set(self._runtime.context.group(role).members())
            now_s = time.monotonic()
            if missing and now_s > next_word_s:
                next_word_s = now_s + PROGRESS_S
                self._console.say(f"waiting for {', '.join(sorted(missing))} ({now_s - started_s:.0f} s)")
            if missing and now_s - started_s > self._settings.start_timeout_s:
                self._fail(FailRun(min(missing), self._late(missing)))
                return
        self._console.say(f"all actors are up ({time.monotonic() - started_s:.1f} s)")

    def _late(self, missing: set[str]) -> str:
        return (
            f"{', '.join(sorted(missing))} did not start within "
            f"launch.start_timeout_s={self._settings.start_timeout_s:g}; see the log, or raise it"
        )

    # --- deaths -----------------------------------------------------------------------------------------------------

    def _on_silence(self, incarnation: str, reason: str) -> None:
        """The directory has no sign of life from a process: stopped, or an event loop that hangs. The rest of the run
        goes on without it already, so it ends here too, and counts as any that ended."""
        for process, child in self._children.items():
            if self._incarnations[process] == incarnation:
                self._silent[incarnation] = reason
                child.kill()

    def _on_exit(self, process: str, code: int) -> None:
        exit = Exit(code, self._silent.pop(self._incarnations[process], ""))
        child = self._children.pop(process)
        child.kill()  # what it started and left behind
        if process in self._tails:
            self._tails[process].drain()
        self._runtime.directory.process_down(self._incarnations[process], f"{process} ended ({exit})")
        decision = self._state.exited(process, exit, time.monotonic())
        if isinstance(decision, Ignore):
            return
        if isinstance(decision, Restart):
            self._console.say(f"{process} ended ({exit}); restart {decision.attempt} in {decision.after_s:g} s")
            self._background(self._restart(decision), f"restart {process}")
            return
        self._fail(decision)

    async def _restart(self, decision: Restart) -> None:
        await asyncio.sleep(decision.after_s)
        self._start(decision.process)

    def _fail(self, failure: FailRun) -> None:
        process = failure.process if failure.process in self._plans else self._hosting(failure.process)
        log = self._job.folder / "logs" / f"{process}.log"
        self._finish(Outcome("failed", f"{failure.reason}\n--- last lines of {log} ---\n{last_lines(log)}"))

    def _hosting(self, actor: str) -> str:
        return next(plan.name for plan in self._plans.values() if actor in plan.actors)

    # --- stopping ---------------------------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        """Each process in reverse order: SIGTERM, a moment to end, then the next; all have until the drain deadline."""
        deadline_s = time.monotonic() + self._settings.drain_timeout_s
        running = [name for name in reversed(self._plans) if name in self._children]
        self._state.stop_all()
        for process in running:
            child = self._children.get(process)
            if child is not None and not self._hurry.is_set():
                child.ask_to_stop()
                await self._until_ended([child], min(deadline_s, time.monotonic() + self._settings.stop_stagger_s))
        await self._until_ended(list(self._children.values()), deadline_s)
        if self._children:
            why = "asked to stop at once" if self._hurry.is_set() else "still there at the deadline"
            self._console.say(f"killing {', '.join(sorted(self._children))}: {why}")

    async def _until_ended(self, children: list[Child], deadline_s: float) -> None:
        hurry = asyncio.ensure_future(self._hurry.wait())
        waiting: set[asyncio.Future[Any]] = {child.ended for child in children if not child.ended.done()}
        while waiting and not hurry.done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            _, pending = await asyncio.wait({*waiting, hurry}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            waiting &= pending
        hurry.cancel()

    def _kill_all(self) -> None:
        self._state.stop_all()
        for process, child in list(self._children.items()):
            left = child.kill()
            if left:
                self._console.error(f"{process}: processes {left} do not die; they hang in the kernel")

    # --- background -------------------------------------------------------------------------------------------------

    def _background(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """A task that is kept; its exception fails the run with its traceback."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._finish(launcher_failure(f"the launcher's task {task.get_name()!r}", error))

    def _watch_runtime(self) -> None:
        self._runtime.directory.on_silence = self._on_silence
        self._runtime.failed.add_done_callback(
            lambda failed: None if failed.cancelled() else self._finish(_runtime_failure(failed.exception()))
        )

    async def _follow_logs(self) -> None:
        while True:
            for tail in self._tails.values():
                tail.poll()
            await asyncio.sleep(POLL_S)


def launcher_failure(what: str, error: BaseException) -> Outcome:
    """The outcome of an error in the launcher's own process, with its traceback."""
    return Outcome(
        "failed", f"{what} raised {type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
    )


def _runtime_failure(error: BaseException | None) -> Outcome:
    return Outcome("failed", f"an actor of the launcher failed: {error}")
