"""The agents of a run's nodes, all on this machine: start them, learn of their ends, start them again, end them. Called
by supervisor.py, in the launcher's process.

A launcher for other machines (Slurm, Ray, ssh) supplies another class with these methods that runs the same command
there; everything else goes by messages.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from headrace.launch.child import Child
from headrace.launch.node import first_lines
from headrace.launch.processes import kill_sessions
from headrace.launch.run_network import Joining
from headrace.launch.supervisor_state import RestartPolicy
from headrace.launch.undertaker import Undertaker

STOP_TIMEOUT_S = 5.0
"""for agents that are asked to end: their processes are gone by then"""


class NodeAgents(Protocol):
    def start(self, node: str, incarnation: str) -> asyncio.Future[int]:
        """Start the agent of a node; the future has its exit code when it is seen to be gone."""

    def kill(self, node: str) -> None:
        """End it, though it may hang."""

    async def bury(self, sessions: Iterable[int]) -> None:
        """The agent that owned these sessions is gone: return when they are too, as far as can be seen from here."""

    async def close(self, *, at_once: bool) -> None:
        """End all agents, in good order or `at_once`; when it returns nothing of any node is alive."""


class LocalAgents:
    def __init__(
        self,
        folder: Path,
        *,
        joining: Callable[[str], Joining],
        policy: RestartPolicy,
        undertaker: Undertaker,
        environment: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._joining = joining
        self._policy = policy
        self._undertaker = undertaker
        self._environment = {**environment, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        self._agents: dict[str, Child] = {}

    def start(self, node: str, incarnation: str) -> asyncio.Future[int]:
        child = self._agents[node] = Child(
            [sys.executable, "-m", "headrace.launch.node", str(self._folder), node, str(os.getpid())],
            environment=self._environment,
            log=self.log(node),
            first_line=first_lines(self._joining(incarnation), self._policy),
        )
        self._undertaker.watch_session(child.pid)
        return child.ended

    def log(self, node: str) -> Path:
        return self._folder / "logs" / f"node-{node}.log"

    def kill(self, node: str) -> None:
        self._agents[node].kill()

    async def bury(self, sessions: Iterable[int]) -> None:
        await asyncio.to_thread(kill_sessions, list(sessions))

    async def close(self, *, at_once: bool) -> None:
        living = [child for child in self._agents.values() if not child.ended.done()]
        if living and not at_once:
            for child in living:
                child.ask_to_stop()
            await asyncio.wait([child.ended for child in living], timeout=STOP_TIMEOUT_S)
        for child in living:
            child.kill()
        if living:
            await asyncio.wait([child.ended for child in living], timeout=STOP_TIMEOUT_S)
