"""Who reads the weights outside the learner's worker thread at this moment. The optimizer waits until nobody does.

Taken in the worker thread, between two jobs; released in any. Knows nothing of what is read, nor of torch.
"""

from __future__ import annotations

import threading
from typing import Any

RELEASE_TIMEOUT_S = 600.0
"""What holds the weights is a short forward pass: after so long it hangs, or its hold was lost."""


class Hold:
    """One reader's claim that the weights stay as they are; given back once, by `release` or at the end of a `with`."""

    def __init__(self, holds: WeightHolds) -> None:
        self._holds: WeightHolds | None = holds

    def release(self) -> None:
        holds, self._holds = self._holds, None
        if holds is not None:
            holds._released()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.release()


class WeightHolds:
    def __init__(self) -> None:
        self._num_held = 0
        self._interrupted = False
        self._changed = threading.Condition()

    def take(self) -> Hold:
        with self._changed:
            self._num_held += 1
        return Hold(self)

    def wait_released(self, *, timeout_s: float = RELEASE_TIMEOUT_S) -> bool:
        """Before the weights change. False where `interrupt` ended the wait; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._interrupted or not self._num_held, timeout_s):
                raise TimeoutError(
                    f"the weights were still being read after {timeout_s:g} s ({self._num_held} readers); no step was "
                    "taken. The update probe reads them (learner.update_probe=null turns it off)"
                )
            return not self._interrupted

    def interrupt(self) -> None:
        """Whoever waits, now or later, waits no more."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def _released(self) -> None:
        with self._changed:
            self._num_held -= 1
            self._changed.notify_all()
