"""Grading in killable processes, from asyncio: a request never blocks the event loop and always comes back.

N workers, each a task with its own warden process (warden.py); requests wait in one queue, bounded by the callers (each
has one request at a time). A worker starts with the first request that needs it. The time limit counts from when a
child starts to work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import msgpack

from headrace.actors.grader.framing import HEADER, frame_length, pack_frame
from headrace.actors.grader.grading import Grade, Grading, as_grade, killed_reward
from headrace.actors.session import Trajectory

log = logging.getLogger(__name__)

DEFAULT_MEMORY_BYTES = 4 << 30
_START_LIMIT_S = 120.0
_REPLY_GRACE_S = 10.0
_STOP_LIMIT_S = 5.0

Request = tuple[bytes, "asyncio.Future[dict[str, Any]]"]


class WorkerFailed(RuntimeError):
    """The worker process could not be started or was lost; says why. An infrastructure failure, never the answer's
    fault."""


class PoolClosed(WorkerFailed):
    """The pool was closed while the session waited or was graded: nobody failed."""


class WorkerPool:
    """grading: picklable. timeout_s: hard wall limit of one grading. memory_bytes: address space of a child."""

    def __init__(
        self,
        grading: Grading,
        *,
        num_workers: int,
        timeout_s: float,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        if num_workers < 1:
            raise ValueError(f"num_workers must be >= 1, got {num_workers}")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be > 0, got {timeout_s}")
        self._grading = grading
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._setup = pickle.dumps(
            {
                "grading": pickle.dumps(grading),
                "sys_path": list(sys.path),
                "timeout_s": timeout_s,
                "memory_bytes": memory_bytes,
            }
        )
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_idle = 0
        self._closed = False
        self.num_killed = 0
        """gradings that ran past a limit or died"""

    async def grade(self, trajectory: Trajectory) -> Grade:
        """Grade in a child. A killed grading gives the grading's `killed_reward`, a raised exception None with its
        traceback. Raises WorkerFailed where no child can be had."""
        if self._closed:
            raise PoolClosed("the worker pool was closed")
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self._num_idle <= self._requests.qsize() and len(self._tasks) < self._num_workers:
            self._start_worker()
        self._requests.put_nowait((pickle.dumps(trajectory), future))
        return self._to_grade(await future)

    async def close(self) -> None:
        """Stop every worker and wait until its processes are gone; every request raises PoolClosed."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while not self._requests.empty():
            _, future = self._requests.get_nowait()
            if not future.done():
                future.set_exception(PoolClosed("the worker pool was closed"))

    def _start_worker(self) -> None:
        task = asyncio.get_running_loop().create_task(self._work(), name=f"grading-worker-{len(self._tasks)}")
        self._tasks.add(task)
        task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s ended", task.get_name(), exc_info=task.exception())

    async def _work(self) -> None:
        """One worker: takes a request, answers it, for ever. A warden that is lost is replaced at the next request."""
        connection: WardenConnection | None = None
        try:
            while True:
                self._num_idle += 1
                try:
                    payload, future = await self._requests.get()
                finally:
                    self._num_idle -= 1
                if future.done():
                    continue
                try:
                    if connection is None:
                        connection = await WardenConnection.start(self._setup)
                    reply = await connection.request(payload, timeout_s=self._timeout_s + _REPLY_GRACE_S)
                except asyncio.CancelledError:
                    if not future.done():
                        future.set_exception(PoolClosed("the worker pool was closed"))
                    raise
                except Exception as error:  # also what is no reply: whoever asked must not wait for ever
                    log.debug("grading worker lost: %r", error)  # the caller tells it
                    if connection is not None:
                        await connection.close()
                        connection = None
                    if not future.done():
                        future.set_exception(WorkerFailed(str(error) or repr(error)))
                    continue
                if not future.done():
                    future.set_result(reply)
        finally:
            if connection is not None:
                await connection.close()

    def _to_grade(self, reply: dict[str, Any]) -> Grade:
        kind, detail = str(reply["outcome"]), str(reply["detail"])
        if kind == "graded":
            return as_grade(Grade(reply["reward"], reply["components"], reply["notes"]))
        if kind in ("timed_out", "died"):
            self.num_killed += 1
            return Grade(killed_reward(self._grading), notes={"grading": kind, "grading_detail": detail})
        return Grade(None, notes={"grading": "raised", "grading_detail": detail})


@dataclass(slots=True)
class WardenConnection:
    """One warden process and the socket to it."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    closed: bool = field(default=False)

    @classmethod
    async def start(cls, setup: bytes) -> WardenConnection:
        """Start a warden and wait until it has loaded the grading. Raises WorkerFailed with the child's traceback.

        Started from the loop's own thread: the kernel's parent-death signal follows the thread that started a child."""
        process, ours = _spawn_warden()
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = cls(process, reader, writer)
        try:
            ready = await connection.request(setup, timeout_s=_START_LIMIT_S)
        except BaseException:
            await connection.close()
            raise
        if ready["outcome"] != "ready":
            await connection.close()
            raise WorkerFailed(f"the grading cannot be loaded in its child process:\n{ready['detail']}")
        return connection

    async def request(self, payload: bytes, *, timeout_s: float) -> dict[str, Any]:
        """One frame there, one reply back. Raises WorkerFailed where the warden ends or stays silent."""
        try:
            async with asyncio.timeout(timeout_s):
                self.writer.write(pack_frame(payload))
                await self.writer.drain()
                header = await self.reader.readexactly(HEADER.size)
                reply = await self.reader.readexactly(frame_length(header))
        except TimeoutError:
            raise WorkerFailed(f"the grading warden (pid {self.process.pid}) gave no reply in {timeout_s} s") from None
        except (asyncio.IncompleteReadError, OSError) as error:
            raise WorkerFailed(
                f"the grading warden (pid {self.process.pid}) ended, exit code {self.process.poll()}: {error!r}"
            ) from error
        decoded = msgpack.unpackb(reply)
        if not isinstance(decoded, dict) or "outcome" not in decoded:
            raise WorkerFailed(f"the grading warden (pid {self.process.pid}) sent something that is no reply")
        return decoded

    async def close(self) -> None:
        """End the warden, its child and everything below, and wait for them. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.writer.close()  # the warden sees the end of its input, kills its child and exits
        waiting = asyncio.get_running_loop().run_in_executor(None, _wait_or_kill, self.process)
        await asyncio.shield(waiting)


def _spawn_warden() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A warden process in a session of its own, and our end of the socket to it. Takes milliseconds."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "headrace.actors.grader.warden", str(theirs.fileno()), str(os.getpid())]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its child follows by the parent-death signal
        process.wait()
