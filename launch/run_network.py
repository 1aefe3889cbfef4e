"""The sockets of one run: a private folder for them, where the directory is, and the runtimes of launcher and children.

What a child needs to join travels as one line of JSON on its standard input (see process.py).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.launch.undertaker import Undertaker
from headrace.transport import Runtime, ZmqNetwork


@dataclass(frozen=True, slots=True)
class Joining:
    """What a child is told."""

    ipc_folder: str
    directory: str
    incarnation: str

    def to_line(self) -> str:
        fields = {"ipc_folder": self.ipc_folder, "directory": self.directory, "incarnation": self.incarnation}
        return json.dumps(fields) + "\n"

    @classmethod
    def from_json(cls, fields: Mapping[str, str]) -> Joining:
        return cls(fields["ipc_folder"], fields["directory"], fields["incarnation"])

    def runtime(self) -> Runtime:
        """The child's runtime, not started yet."""
        network = ZmqNetwork(ipc_folder=self.ipc_folder)
        return Runtime(network, directory=self.directory, incarnation=self.incarnation)


class RunNetwork:
    """The launcher's side. Folder names are short: the path of a socket is limited to 107 bytes."""

    def __init__(self, undertaker: Undertaker, *, silence_s: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))
        undertaker.remove_folder(self._folder)
        self.launcher_pid = os.getpid()
        self.runtime = Runtime(ZmqNetwork(ipc_folder=str(self._folder)), silence_s=silence_s)

    def joining(self, incarnation: str) -> Joining:
        """For a child whose death will be reported under this incarnation. The runtime must have been started."""
        return Joining(str(self._folder), str(self.runtime.address), incarnation)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
