"""The sockets of one run: a private folder for them and for the run's keys, where the directory is, and the runtimes of
launcher and children.

What a child needs to join, keys included, travels as one line of JSON on its standard input (see process.py): never on
a command line, in the environment, in a log or in the configuration.
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

from headrace.launch.network_settings import NetworkSettings
from headrace.launch.undertaker import Undertaker
from headrace.transport import CurveKeys, Runtime

KEYS_FILE = "curve.keys"
"""in the run's private folder (mode 0700), itself of mode 0600: for launchers that reach other machines"""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a child is told."""

    ipc_folder: str
    directory: str
    incarnation: str
    lag_warn_s: float
    settings: NetworkSettings
    keys: CurveKeys | None
    node: str = ""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Joining:
        keys = fields["keys"] and CurveKeys.from_json(fields["keys"])
        return cls(**{**fields, "settings": NetworkSettings(**fields["settings"]), "keys": keys})

    def runtime(self) -> Runtime:
        """The child's runtime, not started yet."""
        return Runtime(
            self.settings.network(self.keys, self.ipc_folder),
            directory=self.directory,
            incarnation=self.incarnation,
            lag_warn_s=self.lag_warn_s,
            node=self.node,
            max_message_bytes=self.settings.max_message_bytes,
        )


class RunNetwork:
    """The launcher's side. Folder names are short: the path of a socket is limited to 107 bytes."""

    def __init__(
        self, undertaker: Undertaker, *, silence_s: float, lag_warn_s: float, settings: NetworkSettings | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))
        undertaker.remove_folder(self._folder)
        self.launcher_pid = os.getpid()
        self._lag_warn_s = lag_warn_s
        self._settings = settings or NetworkSettings()
        self._keys = self._settings.make_keys()
        if self._keys is not None:
            self._keys.write(self._folder / KEYS_FILE)
        self.runtime = Runtime(
            self._settings.network(self._keys, str(self._folder)),
            silence_s=silence_s,
            lag_warn_s=lag_warn_s,
            max_message_bytes=self._settings.max_message_bytes,
        )

    @property
    def folder(self) -> Path:
        """Private (mode 0700), and gone with the run."""
        return self._folder

    def joining(self, incarnation: str) -> Joining:
        """For a child whose death will be reported under this incarnation. The runtime must have been started."""
        directory = str(self.runtime.address)
        return Joining(str(self._folder), directory, incarnation, self._lag_warn_s, self._settings, self._keys)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
