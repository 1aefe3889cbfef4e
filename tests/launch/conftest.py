"""What the launcher's tests share: plug-in classes that child processes can import, launchers in processes of their
own, and waiting on processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.processes import kill_sessions

PLUGINS = Path(__file__).parent / "plugins"
sys.path.insert(0, str(PLUGINS))


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Path:
    """tests/launch/plugins, importable here and in the processes that this one starts."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(PLUGINS), os.environ.get("PYTHONPATH")])))
    return PLUGINS


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a fact about other processes, which no virtual clock can bring about."""
    import time

    def wait(fact: Callable[[], object], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not fact():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
            time.sleep(0.02)

    return wait


@dataclass
class LaunchedRun:
    """A launcher in a process of its own."""

    folder: Path
    launcher: subprocess.Popen[str]
    output: str = ""

    def marks(self) -> list[int]:
        """Process ids that actors have left in the folder."""
        return [int(path.name.partition("-")[2]) for path in self.folder.glob("mark-*")]

    def has_said(self, text: str) -> bool:
        """Whether it stands on the console by now."""
        console = self.folder / "logs" / "console.log"
        return console.exists() and text in console.read_text()

    def agent(self, node: str) -> int | None:
        """The process id of a node's agent."""
        return find_agent(self.folder, node)

    def descendants(self) -> list[int]:
        """Processes of this run, whoever their parent is now: its folder stands on their command lines."""
        wanted = os.fsencode(str(self.folder))
        return [pid for pid, line in _command_lines() if wanted in line and pid != self.launcher.pid]

    def end(self, timeout_s: float = 60) -> int:
        """Wait for the launcher; returns its exit code."""
        self.output, _ = self.launcher.communicate(timeout=timeout_s)
        return self.launcher.returncode

    @property
    def outcome(self) -> dict[str, Any]:
        last: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return last


def _command_lines() -> Iterator[tuple[int, list[bytes]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue


def find_agent(folder: Path, node: str) -> int | None:
    """The process id of the agent of `node` in the run whose folder is in `folder`."""
    for pid, line in _command_lines():
        if {b"headrace.launch.node", node.encode()} <= set(line) and any(os.fsencode(folder) in word for word in line):
            return pid
    return None


@pytest.fixture
def agent_of() -> Callable[[Path, str], int | None]:
    return find_agent


@pytest.fixture
def launch(plugins: Path, tmp_path: Path) -> Iterator[Callable[..., LaunchedRun]]:
    """`launch(roles, nodes, **arguments of LocalLauncher)`; nothing of it outlives the test."""
    runs: list[LaunchedRun] = []

    def start(roles: dict[str, dict[str, Any]], nodes: dict[str, Any], **arguments: Any) -> LaunchedRun:
        given = {"topology": {"nodes": nodes}, "roles": roles, "launch": arguments}
        launcher = subprocess.Popen(
            [sys.executable, str(plugins / "launch_roles.py"), str(tmp_path), json.dumps(given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        runs.append(LaunchedRun(tmp_path, launcher))
        return runs[-1]

    yield start
    for run in runs:
        kill_sessions([run.launcher.pid])
        for pid in run.descendants():
            os.kill(pid, signal.SIGKILL)
        run.launcher.communicate()
