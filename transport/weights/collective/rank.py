"""One process's place in its groups: joins, keeps those that are still wanted, aborts. Used by sender and receiver.

Thread-safe: `join` blocks in its caller's thread; `abort` and `close` come from another one and end it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator

from headrace.transport.weights.collective.communicator import Communicator, GroupBroken, join
from headrace.transport.weights.collective.passage import Progress


class Rank:
    """device: where the buffers are that it broadcasts ("cpu", "cuda:0"). bucket_bytes: see communicator.join."""

    def __init__(self, *, device: str = "cpu", bucket_bytes: int = 64 << 20) -> None:
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._groups: dict[str, Communicator] = {}
        self._progress: dict[str, Progress] = {}
        self._joining: dict[str, threading.Event] = {}
        self._aborted: set[str] = set()
        self._lock = threading.Lock()

    def join(self, group: str, backend: str, unique_id: bytes, *, rank: int, world_size: int, timeout_s: float) -> None:
        """Raises GroupBroken at the deadline, or where it is aborted meanwhile; ValueError for a wrong setting."""
        cancelled = threading.Event()
        with self._lock:
            if group in self._aborted:
                raise GroupBroken(f"group {group} was aborted before it was joined")
            self._joining[group] = cancelled
            self._progress[group] = Progress()
        communicator: Communicator | None = None
        try:
            communicator = join(
                backend,
                unique_id,
                rank=rank,
                world_size=world_size,
                timeout_s=timeout_s,
                device=self._device,
                bucket_bytes=self._bucket_bytes,
                cancelled=cancelled,
            )
        finally:
            with self._lock:
                del self._joining[group]
                if communicator is not None and not cancelled.is_set():
                    self._groups[group] = communicator
        if cancelled.is_set():
            communicator.destroy()
            raise GroupBroken(f"group {group} was aborted while it was joined")

    def keep(self, groups: Collection[str]) -> None:
        """Leave every other group: the members changed."""
        with self._lock:
            others = [group for group in (*self._groups, *self._joining) if group not in groups]
            self._aborted.intersection_update(groups)
            self._progress = {group: progress for group, progress in self._progress.items() if group in groups}
        for group in others:
            self._leave(group)

    def communicator(self, group: str) -> Communicator:
        """Raises GroupBroken where this rank is not in that group (any more)."""
        with self._lock:
            if group not in self._groups:
                raise GroupBroken(f"this rank is in no group {group}; it was aborted, or made by an earlier life")
            return self._groups[group]

    @contextlib.contextmanager
    def passage(self, group: str) -> Iterator[tuple[Communicator, Progress]]:
        """For one version through the group. Where it breaks, this rank's end is aborted: nothing of it runs on."""
        communicator = self.communicator(group)
        progress = self._progress[group] = Progress()
        try:
            yield communicator, progress
        except BaseException:
            communicator.abort()
            raise

    def abort(self, group: str) -> int:
        """End what is under way there, and leave. A group that was not joined yet never will be. How far it came: 0
        where it has not begun to join, 1 where it has, else 2 + the buckets of its last passage."""
        with self._lock:
            self._aborted.add(group)
            progress = self._progress.get(group)
            joined = group in self._groups
        self._leave(group)
        return 0 if progress is None else 2 * joined + (not joined) + progress.num_buckets

    def close(self) -> None:
        self.keep(())

    def _leave(self, group: str) -> None:
        with self._lock:
            communicator = self._groups.pop(group, None)
            if group in self._joining:
                self._joining[group].set()
        if communicator is not None:
            with contextlib.suppress(GroupBroken):
                communicator.destroy()
