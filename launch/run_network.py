"""The sockets of one run: a private folder for them, where the directory is, and the runtimes of launcher and children.

What a child needs to join travels as one line of JSON on its standard input (see process.py).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.launch.undertaker import Undertaker
from headrace.transport import Runtime, ZmqNetwork


@dataclass(frozen=True, slots=True)
class Joining:
    """What a child is told."""

    ipc_folder: str
    directory: str
    incarnation: str
    lag_warn_s: float

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Joining:
        return cls(**fields)

    def runtime(self) -> Runtime:
        """The child's runtime, not started yet."""
        network = ZmqNetwork(ipc_folder=self.ipc_folder)
        return Runtime(network, directory=self.directory, incarnation=self.incarnation, lag_warn_s=self.lag_warn_s)


class RunNetwork:
    """The launcher's side. Folder names are short: the path of a socket is limited to 107 bytes."""

    def __init__(self, undertaker: Undertaker, *, silence_s: float, lag_warn_s: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))
        undertaker.remove_folder(self._folder)
        self.launcher_pid = os.getpid()
        self._lag_warn_s = lag_warn_s
        self.runtime = Runtime(ZmqNetwork(ipc_folder=str(self._folder)), silence_s=silence_s, lag_warn_s=lag_warn_s)

    def joining(self, incarnation: str) -> Joining:
        """For a child whose death will be reported under this incarnation. The runtime must have been started."""
        return Joining(str(self._folder), str(self.runtime.address), incarnation, self._lag_warn_s)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
