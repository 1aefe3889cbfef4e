"""The way into a running run from another terminal: a unix socket that its launcher serves. Called by local.py.

    control.json (0600) in the run folder ──names──▶ control.sock in the run's private folder (0700)
    one line of JSON in, lines of JSON out:   {"role", "count", "node"} or {}  ─▶  {"say"}… {"say", "exit"}

Only processes of the same user (or root) are served: the folder keeps others out, and the kernel says who asks. The
socket is not in the run folder, whose path may be longer than the 107 bytes that a socket's may have. What the client
sees of it is control_client.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from headrace.launch.job import EXIT_CODES
from headrace.launch.patience import Say
from headrace.launch.scaling import CannotScale, Wish

log = logging.getLogger(__name__)

CONTROL_FILE = "control.json"
SOCKET = "control.sock"
MAX_LINE_BYTES = 64 * 1024
REQUEST_TIMEOUT_S = 10.0
MAX_CLIENTS = 32
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: see unix(7), SO_PEERCRED


class Changes(Protocol):
    """What the scaler does for a client."""

    def counts(self) -> str: ...

    async def change(self, wish: Wish, say: Say) -> str: ...


class ControlServer:
    def __init__(self, folder: Path, private_folder: Path, changes: Changes) -> None:
        self._file = folder / CONTROL_FILE
        self._socket = private_folder / SOCKET
        self._changes = changes
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, self._socket, limit=MAX_LINE_BYTES)
        self._socket.chmod(0o600)
        self._write_where()

    def _write_where(self) -> None:
        where = {"socket": str(self._socket), "host": socket.gethostname(), "pid": os.getpid()}
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(where) + "\n")

    async def close(self) -> None:
        """Every client is told that the run has ended."""
        if self._server is None:
            return
        self._server.close()
        self._file.unlink(missing_ok=True)
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            if _is_ours(writer) and len(self._clients) <= MAX_CLIENTS:
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            _tell(writer, say="the run has ended", exit=EXIT_CODES["failed"])
        finally:
            self._clients.discard(task)
            with contextlib.suppress(OSError):  # the client has gone
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = json.loads(await reader.readline())
            text = await self._do(request, lambda said: _tell(writer, say=said))
        except CannotScale as error:
            _tell(writer, say=str(error), exit=error.exit_code)
        except (TimeoutError, ValueError, KeyError, TypeError, RecursionError) as error:
            _tell(writer, say=f"the launcher cannot read that request: {error!r}", exit=EXIT_CODES["failed"])
        except Exception as error:  # a defect of a change must not end the run
            log.exception("a request failed")
            _tell(writer, say=f"the launcher failed at it: {error!r}", exit=EXIT_CODES["failed"])
        else:
            _tell(writer, say=text, exit=0)

    async def _do(self, request: dict[str, Any], say: Callable[[str], None]) -> str:
        if not request:
            return self._changes.counts()
        node = request["node"]
        wish = Wish(str(request["role"]), int(request["count"]), None if node is None else str(node))
        return await self._changes.change(wish, say)


def _tell(writer: asyncio.StreamWriter, **line: object) -> None:
    """Never waits: a client that does not read is not waited for, and what it is told is bounded by its change."""
    if not writer.is_closing():
        writer.write(json.dumps(line).encode() + b"\n")


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a unix socket, as the kernel says."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _is_ours(writer: asyncio.StreamWriter) -> bool:
    return peer_uid(writer.get_extra_info("socket")) in (0, os.getuid())
