"""The launcher for one machine: every process of the topology is a supervised child of this one. Config:
launch=local."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from headrace.launch.environ import launcher_environment
from headrace.launch.job import Job, Outcome
from headrace.launch.run_end import NAME, RunEnd
from headrace.launch.run_network import RunNetwork
from headrace.launch.settings import SupervisorSettings
from headrace.launch.shared_memory import remove_run
from headrace.launch.start_order import DEFAULT_ORDER
from headrace.launch.supervisor import Supervisor
from headrace.launch.supervisor_state import RestartPolicy
from headrace.launch.undertaker import Undertaker


class LocalLauncher:
    """`restart`: roles whose processes are restarted when they end; any other loss fails the run. More than
    `max_restarts` within `restart_window_s` fails it too. One that gives no sign for `silence_s` is ended."""

    def __init__(
        self,
        *,
        restart: Sequence[str] = ("environment", "grader"),
        max_restarts: int = 10,
        restart_window_s: float = 60.0,
        start_timeout_s: float = 600.0,
        drain_timeout_s: float = 6.0,
        stop_stagger_s: float = 0.5,
        silence_s: float = 60.0,
        start_order: Sequence[str] = DEFAULT_ORDER,
    ) -> None:
        self._settings = SupervisorSettings(
            restart_policy=RestartPolicy(frozenset(restart), max_restarts, restart_window_s),
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
            stop_stagger_s=stop_stagger_s,
            silence_s=silence_s,
            start_order=tuple(start_order),
        )

    async def launch(self, job: Job) -> Outcome:
        """See job.Launcher. Takes over SIGINT and SIGTERM while it runs."""
        undertaker = Undertaker()
        undertaker.remove_shared_memory(job.run_id)
        network = RunNetwork(undertaker, silence_s=self._settings.silence_s)
        runtime = network.runtime
        await runtime.start()
        try:
            supervisor = Supervisor(
                job,
                self._settings,
                network=network,
                undertaker=undertaker,
                environment=launcher_environment(),
            )
            await runtime.add(RunEnd(on_finished=supervisor.finished), NAME)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, supervisor.interrupt, number)
            try:
                return await supervisor.run()
            finally:
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.remove_signal_handler(number)
        finally:
            await runtime.stop()
            network.close()
            remove_run(job.run_id)
            undertaker.dismiss()
