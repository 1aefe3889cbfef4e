"""Inside a vLLM worker: how versions come near. Joins and receives broadcasts, or opens what lies in device memory, in
a thread of its own, while the worker steps the model; every method returns at once, for vLLM calls all workers and
waits.

vLLM injects `GroupWorker` into its workers (worker_extension_cls); the engine's side is vllm_group.py and
vllm_workers.py. What is near waits here until vllm_transfer.py loads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headrace.actors.generator.opened_weights import OpenedWeights, open_verified
from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.collective.receiver import CollectiveReceiver, ReceivedWeights


class WorkersRank:
    """One thing at a time is under way: a join, a receipt, or an opening. A new one takes the place of one that was
    aborted."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.receiver = CollectiveReceiver(device=device)
        self._near: ReceivedWeights | OpenedWeights | None = None
        self._task: _Task | None = None

    def begin(self, work: Callable[[], ReceivedWeights | OpenedWeights | None]) -> None:
        self._task = _Task(work)
        self._task.start()

    def poll(self) -> dict[str, Any]:
        """`done`, `error` (its class and text), `send_s`, `verify_s` of what was begun last."""
        task = self._task
        if task is None or task.is_alive():
            return {"done": task is None}
        if task.error is not None:
            return {"done": True, "error": (type(task.error).__name__, str(task.error))}
        if task.result is None:
            return {"done": True}
        if self._near is not None and self._near is not task.result:
            self._near.close()  # it was superseded before it was loaded
        self._near = task.result
        return {"done": True, "send_s": task.result.send_s, "verify_s": task.result.verify_s}

    def holds(self, version: int) -> bool:
        return self._near is not None and self._near.manifest.version == version

    def take(self, version: int) -> ReceivedWeights | OpenedWeights:
        """What came near last; once. Raises WeightsMismatch where it is another version."""
        near, self._near = self._near, None
        if near is None or near.manifest.version != version:
            held = "nothing" if near is None else f"version {near.manifest.version}"
            raise WeightsMismatch(f"version {version} is to be loaded, and this worker has received {held}")
        return near


class _Task(threading.Thread):
    def __init__(self, work: Callable[[], ReceivedWeights | OpenedWeights | None]) -> None:
        super().__init__(name="weights-receive", daemon=True)
        self._work = work
        self.result: ReceivedWeights | OpenedWeights | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # whatever it was, it belongs to the one who polls
            self.error = error


_rank: WorkersRank | None = None


def rank_of_this_worker(device: str = "cpu") -> WorkersRank:
    """A vLLM worker has a process of its own, and this one rank."""
    global _rank
    if _rank is None:
        _rank = WorkersRank(device)
    return _rank


class GroupWorker:
    """`rank` and `device` are the vLLM worker's own: rank counts tensor- and pipeline-parallel workers."""

    rank: int
    device: Any

    def headrace_group_rank(self) -> int:
        return self.rank

    def headrace_group_join(self, values: dict[str, Any]) -> None:
        place = self._headrace_place()
        options = {**values, "rank": values["rank"] + self.rank}
        place.begin(lambda: place.receiver.join(**options))

    def headrace_group_receive(self, group: str, manifest: dict[str, Any], timeout_s: float) -> None:
        from headrace.actors.generator.vllm_transfer import manifest_from_dict

        place, of = self._headrace_place(), manifest_from_dict(manifest)
        place.begin(lambda: place.receiver.receive(group, of, timeout_s=timeout_s))

    def headrace_open(self, manifest: dict[str, Any]) -> None:
        from headrace.actors.generator.vllm_transfer import manifest_from_dict

        place, of = self._headrace_place(), manifest_from_dict(manifest)
        place.begin(lambda: open_verified(of, place.device))

    def headrace_group_poll(self) -> dict[str, Any]:
        return self._headrace_place().poll()

    def headrace_group_abort(self, group: str) -> int:
        return self._headrace_place().receiver.abort(group)

    def _headrace_place(self) -> WorkersRank:
        return rank_of_this_worker(str(self.device))
