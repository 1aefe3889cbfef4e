"""The launcher for one machine: every node of the topology is played by it, and every process is supervised. Config:
launch=local."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from headrace.launch.control import ControlServer
from headrace.launch.descriptors import raise_descriptor_limit
from headrace.launch.ending_signals import on_ending_signals
from headrace.launch.environ import check_distinct_devices, child_environment, launcher_environment
from headrace.launch.job import Job, Outcome
from headrace.launch.network_settings import NetworkSettings
from headrace.launch.node_agents import LocalAgents
from headrace.launch.node_messages import node_actor
from headrace.launch.node_supervisor import NodeSupervisor
from headrace.launch.process_starter import ProcessStarter
from headrace.launch.run_end import NAME
from headrace.launch.run_network import RunNetwork
from headrace.launch.settings import SupervisorSettings
from headrace.launch.shared_memory import remove_run
from headrace.launch.start_order import DEFAULT_ORDER
from headrace.launch.supervisor import Supervisor, launcher_failure
from headrace.launch.supervisor_state import RestartPolicy
from headrace.launch.topology import ProcessPlan, devices_of
from headrace.launch.undertaker import Undertaker

Admit = Callable[[Sequence[ProcessPlan]], None]


class LocalLauncher:
    """`restart`: roles whose processes are restarted when they end, null for all; any other loss fails the run. More
    than `max_restarts` on one node within `restart_window_s` fail it too, and so do `max_failed_starts` ends in a row
    of a process that was not up, and more than `max_restarts_without_step` of one while training does not get on. One
    that is not up after `start_timeout_s`, or gives no sign for `silence_s`, is killed and counts as ended. One that
    leaves in mid-run (`headrace scale`) has `leave_timeout_s` for the work in its hands. A handler that holds its event
    loop longer than `lag_warn_s` is named in the log.

    With one node its supervisor lives in this process; with several, each has an agent process. What ran on a node
    whose agent is lost is placed on other nodes; the agent is started again, unless `restart_nodes` is false."""

    def __init__(
        self,
        *,
        restart: Sequence[str] | None = None,
        restart_nodes: bool = True,
        max_restarts: int = 10,
        restart_window_s: float = 60.0,
        max_failed_starts: int = 3,
        max_restarts_without_step: int = 10,
        start_timeout_s: float = 600.0,
        drain_timeout_s: float = 6.0,
        stop_stagger_s: float = 0.5,
        leave_timeout_s: float = 60.0,
        silence_s: float = 60.0,
        lag_warn_s: float = 1.0,
        start_order: Sequence[str] = DEFAULT_ORDER,
        network: NetworkSettings | None = None,
    ) -> None:
        self._network = network or NetworkSettings()
        policy = RestartPolicy(
            restartable=None if restart is None else tuple(restart),
            max_restarts=max_restarts,
            window_s=restart_window_s,
            max_failed_starts=max_failed_starts,
            start_timeout_s=start_timeout_s,
        )
        self._settings = SupervisorSettings(
            restart_policy=policy,
            restart_nodes=restart_nodes,
            max_restarts_without_step=max_restarts_without_step,
            drain_timeout_s=drain_timeout_s,
            stop_stagger_s=stop_stagger_s,
            leave_timeout_s=leave_timeout_s,
            silence_s=silence_s,
            lag_warn_s=lag_warn_s,
            start_order=tuple(start_order),
        )

    async def launch(self, job: Job) -> Outcome:
        """See job.Launcher. Takes over SIGINT, SIGTERM and SIGHUP while it runs."""
        environment = launcher_environment()

        def admit(processes: Sequence[ProcessPlan]) -> None:
            check_distinct_devices(
                [
                    (plan.name, plan.node, child_environment(environment, plan, offline=True))
                    for plan in processes
                    if not plan.shared
                ]
            )

        admit(job.processes)
        raise_descriptor_limit()
        undertaker = Undertaker()
        undertaker.remove_shared_memory(job.run_id)
        network = RunNetwork(
            undertaker,
            silence_s=self._settings.silence_s,
            lag_warn_s=self._settings.lag_warn_s,
            settings=self._network,
        )
        starter = ProcessStarter(job.folder, joining=network.joining, undertaker=undertaker, environment=environment)
        agents = LocalAgents(
            job.folder,
            joining=network.joining,
            policy=self._settings.restart_policy,
            undertaker=undertaker,
            environment=environment,
        )
        try:
            await network.runtime.start()
            return await self._run(job, network, starter, agents, admit)
        finally:
            await network.runtime.stop()
            network.close()
            remove_run(job.run_id)
            undertaker.dismiss()

    async def _run(
        self, job: Job, network: RunNetwork, starter: ProcessStarter, agents: LocalAgents, admit: Admit
    ) -> Outcome:
        runtime = network.runtime
        nodes = list(devices_of(job.config["topology"]))
        supervisor = Supervisor(
            job,
            self._settings,
            directory=runtime.directory,
            agents=agents if len(nodes) > 1 else None,
            admit=admit,
        )
        control = ControlServer(job.folder, network.folder, supervisor.scaler)
        runtime.failed.add_done_callback(lambda failed: _runtime_failed(supervisor, failed))
        with on_ending_signals(supervisor.interrupt):
            try:
                await runtime.add(supervisor, NAME)
                if len(nodes) == 1:
                    policy = self._settings.restart_policy
                    await runtime.add(NodeSupervisor(node=nodes[0], policy=policy, start=starter), node_actor(nodes[0]))
                await control.start()
                return await supervisor.run()
            finally:
                await control.close()
                await supervisor.close()
                await runtime.stop()
                supervisor.show_logs()


def _runtime_failed(supervisor: Supervisor, failed: asyncio.Future[Any]) -> None:
    error = None if failed.cancelled() else failed.exception()
    if error is not None:
        supervisor.finish(launcher_failure("an actor of the launcher", error))
