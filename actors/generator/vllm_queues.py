"""Inside vLLM's processes on a CPU: who waits for another of them sleeps.

The readers of vLLM 0.32 go round and round for a second after each message, and so the engine core does throughout
every step of its worker. On shared cores that takes from the learner, and from the worker itself. A wake-up costs some
50 µs, a step on a CPU tens of milliseconds.

Called by the plug-in (vllm_weights.py), where our own engine asked for it by SLEEP_VARIABLE.
"""

from __future__ import annotations

import time
from typing import Any

SLEEP_VARIABLE = "HEADRACE_VLLM_QUEUES_SLEEP"
CONNECTED_AFTER_S = 5.0
"""Until then a reader may miss that it is told of a message, and looks for itself, as vLLM has it."""


def sleep_at_queues() -> None:
    """From now on every queue that this process opens for reading. Does nothing where there is a GPU, or vLLM waits in
    another way. Idempotent."""
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.platforms import current_platform

    condition: Any = getattr(shm_broadcast, "SpinCondition", None)
    if hasattr(condition, "record_read") and current_platform.is_cpu() and condition.__name__ != "SleepingCondition":
        shm_broadcast.SpinCondition = sleeping(condition)


def sleeping(condition: Any, clock: Any = time.monotonic) -> Any:
    """A SpinCondition that forgets when it read last: beyond its first seconds it never spins."""

    class SleepingCondition(condition):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._connected_s = clock() + CONNECTED_AFTER_S

        def record_read(self) -> None:
            if clock() < self._connected_s:
                super().record_read()

    return SleepingCondition
