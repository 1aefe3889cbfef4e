"""The process that watches one grading child: it loads the grading once, forks a child, and kills and replaces it past
a limit.

    grader actor ──(frames)── warden ──(frames)── child: grading.grade(trajectory)

The warden itself never runs grade(): it stays responsive, single-threaded and warm, so a replacement costs a fork, not
an import. Downwards travel pickles of our own objects; upwards only msgpack, since a child that judged hostile text is
not trusted. Run as `python -m headrace.actors.grader.warden FD PARENT_PID` by worker_pool.py.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass

import msgpack

from headrace.actors.grader.framing import receive_frame, send_frame
from headrace.actors.grader.grading import Grading, WarmGrading, as_grade
from headrace.actors.grader.processes import (
    adopt_orphans,
    die_with_parent,
    kill_tree,
    limit_cpu,
    limit_memory,
    reap_strays,
)

_TRIES_TO_BEGIN = 3
_BEGUN = b""
"""the child's frame before it grades: what kills it from then on is the answer's doing"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one grading may use. `memory_bytes` bounds the child's address space."""

    timeout_s: float
    memory_bytes: int


def outcome(kind: str, detail: str = "", **values: object) -> bytes:
    """A reply: kind is "ready", "graded", "raised", "timed_out" or "died"."""
    return bytes(msgpack.packb({"outcome": kind, "detail": detail[-4000:], **values}))


def checked(reply: bytes) -> bytes:
    """The child's reply, if it has the shape of one. Raises ValueError."""
    decoded = msgpack.unpackb(reply)
    if not isinstance(decoded, dict) or decoded.get("outcome") not in ("graded", "raised", "died"):
        raise ValueError("it sent something that is no reply")
    if decoded["outcome"] == "graded" and not {"reward", "components", "notes"} <= decoded.keys():
        raise ValueError("it sent a grade without its parts")
    return reply


class Warden:
    """Serves one connection until it closes."""

    def __init__(self, connection: socket.socket, grading: Grading, limits: Limits) -> None:
        self._connection = connection
        self._grading = grading
        self._limits = limits
        self._child_pid = 0
        self._child: socket.socket | None = None

    def serve(self) -> None:
        """Answer frames in order: one request, one reply."""
        try:
            self._start_child()
            send_frame(self._connection, outcome("ready"))
            while (request := receive_frame(self._connection)) is not None:
                send_frame(self._connection, self._judge(request))
        finally:
            self._stop_child()

    def _judge(self, request: bytes) -> bytes:
        reply = None
        for _ in range(_TRIES_TO_BEGIN):
            child = self._living_child()
            if self._begins(child, request):
                reply = self._await_reply(child)
                break
            self._stop_child()  # it died while it was idle: no fault of this answer, which gets a new child
        if reply is None:
            raise RuntimeError(f"{_TRIES_TO_BEGIN} grading children ended before they began; is memory_bytes too low?")
        if msgpack.unpackb(reply)["outcome"] == "died":
            self._stop_child()  # what ran out of memory is not trusted with the next answer
        reap_strays(keep=frozenset({self._child_pid}))
        return reply

    def _living_child(self) -> socket.socket:
        if self._child is None:
            self._start_child()
        assert self._child is not None, "_start_child sets it"
        return self._child

    def _begins(self, child: socket.socket, request: bytes) -> bool:
        """Hand over a request and wait until the child has it."""
        try:
            send_frame(child, request)
            return receive_frame(child) == _BEGUN
        except OSError:
            return False

    def _await_reply(self, child: socket.socket) -> bytes:
        ready, _, _ = select.select([child, self._connection], [], [], self._limits.timeout_s)
        if not ready:
            self._stop_child()
            return outcome("timed_out", f"grading ran past {self._limits.timeout_s} s")
        if child not in ready:  # requests are one at a time: this is the actor going away
            self._stop_child()
            os._exit(0)
        try:
            child.settimeout(self._limits.timeout_s)
            reply = receive_frame(child)
            child.settimeout(None)
            if reply is None:
                return outcome("died", "the grading child ended without a reply (out of memory or a crash)")
            return checked(reply)
        except (OSError, ValueError) as error:
            return outcome("died", f"the grading child broke its connection: {error}")

    def _start_child(self) -> None:
        ours, theirs = socket.socketpair()
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._connection.close()
            _run_child(parent_pid, theirs, self._grading, self._limits)
        theirs.close()
        self._child_pid, self._child = pid, ours

    def _stop_child(self) -> None:
        if self._child is None:
            return
        self._child.close()
        self._child = None
        kill_tree(self._child_pid)
        self._child_pid = 0


def _run_child(parent_pid: int, connection: socket.socket, grading: Grading, limits: Limits) -> None:
    """The child's life; never returns."""
    try:
        os.setsid()
        die_with_parent(parent_pid)
        limit_memory(limits.memory_bytes)
        while (request := receive_frame(connection)) is not None:
            limit_cpu(limits.timeout_s)
            send_frame(connection, _BEGUN)
            send_frame(connection, _grade(grading, request))
    except BaseException:  # nothing may climb back into the warden's stack
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _grade(grading: Grading, request: bytes) -> bytes:
    try:
        grade = as_grade(grading.grade(pickle.loads(request)))
        return outcome("graded", reward=grade.reward, components=grade.components, notes=grade.notes)
    except MemoryError:
        return outcome("died", "grading needed more memory than its limit")
    except RecursionError:
        return outcome("died", "grading recursed too deeply")
    except Exception:  # an author's bug: reported with its traceback, the session gets no reward
        return outcome("raised", traceback.format_exc())


def _load(setup: bytes) -> tuple[Grading, Limits]:
    described = pickle.loads(setup)
    sys.path[:] = described["sys_path"]
    grading: Grading = pickle.loads(described["grading"])
    if isinstance(grading, WarmGrading):
        grading.warm_up(in_child=True)
    return grading, Limits(timeout_s=described["timeout_s"], memory_bytes=described["memory_bytes"])


def main(arguments: list[str]) -> int:
    """FD: the socket to the actor. PARENT_PID: whom to die with."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    die_with_parent(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's: it stops the actor, which closes this
    adopt_orphans()
    setup = receive_frame(connection)
    if setup is None:
        return 0
    try:
        grading, limits = _load(setup)
    except Exception:  # reported to the actor, which names it and fails
        send_frame(connection, outcome("raised", traceback.format_exc()))
        return 1
    gc.freeze()
    Warden(connection, grading, limits).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
