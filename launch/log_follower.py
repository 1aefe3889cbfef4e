"""The logs of all processes of a run on the console, as they grow. Called by supervisor.py."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from headrace.launch.console import Console
from headrace.launch.for_console import ForConsole
from headrace.launch.logs import LogTail
from headrace.transport import Context

POLL_S = 0.2


class LogFollower:
    """`packages`: whose lines are shown."""

    def __init__(self, console: Console, packages: Collection[str]) -> None:
        self._console = console
        self._packages = packages
        self._tails: dict[str, LogTail] = {}

    def follow(self, name: str, log: Path) -> None:
        """Idempotent: every life of a process writes to the same file."""
        self._tails.setdefault(name, LogTail(name, log, ForConsole(self._console.line, self._packages)))

    def drain(self, name: str) -> None:
        """Its writer is gone: show all that it left, before anybody says what follows."""
        if name in self._tails:
            self._tails[name].drain()

    def drain_all(self) -> None:
        for name in self._tails:
            self.drain(name)

    async def run(self, context: Context) -> None:
        while True:
            for tail in self._tails.values():
                tail.poll()
            await context.clock.sleep(POLL_S)
