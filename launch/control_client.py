"""The other end of control.py: what `headrace scale` says to the launcher of a running run, and what it hears."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.launch.control import CONTROL_FILE, peer_uid
from headrace.launch.job import EXIT_CODES
from headrace.launch.run_folder import read_config
from headrace.launch.scaling import CannotScale, Wish

CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 60.0
"""A change says something every two seconds."""


def scale(folder: Path, wish: Wish | None, say: Callable[[str], None]) -> None:
    """Until the run is so; without a wish its counts are said. Raises CannotScale."""
    request: dict[str, Any] = {} if wish is None else {"role": wish.role, "count": wish.count, "node": wish.node}
    with _connect(folder) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        for line in _lines(connection, folder):
            code = line.get("exit")
            if code:
                raise CannotScale(str(line["say"]), int(code))
            say(str(line["say"]))
            if code == 0:
                return
    raise CannotScale.now(f"the launcher of {folder} ended before the change was done")


def _connect(folder: Path) -> socket.socket:
    try:
        where = json.loads((folder / CONTROL_FILE).read_text())
        path, host, pid = str(where["socket"]), str(where["host"]), int(where["pid"])
    except FileNotFoundError:
        raise CannotScale.now(_why_no_way_in(folder)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CannotScale.now(f"{folder / CONTROL_FILE} is damaged: {error!r}") from error
    if host != socket.gethostname():
        raise CannotScale.now(f"{folder} runs on host {host}, this is {socket.gethostname()}; say it there")
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(CONNECT_TIMEOUT_S)
    try:
        connection.connect(path)
        if peer_uid(connection) not in (0, os.getuid()):
            raise CannotScale.now(f"{path} is not served by this user's launcher: nothing was said to it")
    except (ConnectionError, FileNotFoundError):
        connection.close()
        raise CannotScale.now(f"{folder} is not running any more: its launcher (process {pid}) is gone") from None
    except BaseException:
        connection.close()
        raise
    connection.settimeout(SILENCE_TIMEOUT_S)
    return connection


def _why_no_way_in(folder: Path) -> str:
    if (folder / "outcome.json").is_file():
        return f"{folder} is not running any more: it has ended"
    launch = read_config(folder).get("launch")
    target = str(launch.get("_target_", "")) if isinstance(launch, dict) else ""
    if target.endswith(".InProcessLauncher"):
        return f"{folder} cannot be scaled: it was launched with launch=inprocess; use launch=local"
    return f"{folder} is not running: it has not started its actors yet, or has ended"


def _lines(connection: socket.socket, folder: Path) -> Iterator[dict[str, Any]]:
    try:
        with connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except TimeoutError:
        text = f"the launcher of {folder} has said nothing for {SILENCE_TIMEOUT_S:g} s; the change may go on"
        raise CannotScale(text, EXIT_CODES["failed"]) from None
    except ConnectionError:
        return
