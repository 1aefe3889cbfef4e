"""What every messaging system under measurement offers. Client and server are two processes of one machine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import Protocol

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAYLOAD_BYTES = 200
WINDOW_BYTES = 64 * 1024 * 1024
"""What a sender of arrays may have under way: the systems without flow control get an acknowledged window of it."""


class Contender(Protocol):
    """All times in seconds. The constructor starts the server and returns when it answers."""

    def asks(self, num: int) -> list[float]:
        """`num` round trips of 200 B one after the other: how long each took."""

    def pipelined(self, num: int, outstanding: int) -> float:
        """`num` round trips of 200 B, `outstanding` of them at once: until the last reply."""

    def tells(self, num: int) -> float:
        """`num` messages of 200 B without a reply: until the receiver has handled the last."""

    def arrays(self, nbytes: int, num: int) -> float:
        """`num` numpy arrays of `nbytes`: until the receiver has the last."""

    def close(self) -> None: ...


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG: a measurement that is interrupted leaves no process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def start_server(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run `serve(*arguments)` of a module of this folder in a process of its own. It ends with its standard input, or
    at once where this process is killed."""
    code = f"""
import sys; sys.path.insert(0, {FOLDER!r})
from contenders.contender import die_with_parent; die_with_parent()
from contenders.{module} import serve; serve(*sys.argv[1:])
"""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE)


def stop_server(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
