"""Where a fault strikes a member, a learner or nobody, and what it does. Lives in the process that it strikes.

gather   it is asked whether it is there         join     it is asked to join
send     it has received the third bucket        verify   the last checksum is due      commit   it is asked to load
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.collective import passage, rank

PHASES = ("gather", "join", "send", "verify", "commit")
STRIKING_BUCKET = 3


class Fault:
    """kind: "absent" (never answers), "dies" (SIGKILL), "stops" (SIGSTOP), "slow" (past its deadline), "refuses",
    "other_order" (goes by another manifest), "flips" (a byte of what it holds), "tells" (says that it is there, and
    gives whoever listens the time to strike). Strikes once."""

    def __init__(self, kind: str, phase: str, slow_s: float, tell: Callable[[str], None]) -> None:
        self.kind, self.phase = kind, phase
        self._slow_s = slow_s
        self._tell = tell
        self._struck = False

    def is_due(self, phase: str) -> bool:
        due = phase == self.phase and not self._struck
        self._struck |= due
        return due

    async def strike(self, phase: str) -> None:
        """On the event loop."""
        if not self.is_due(phase):
            return
        if self.kind == "absent":
            await asyncio.sleep(3600)
        elif self.kind == "slow":
            await asyncio.sleep(self._slow_s)
        elif self.kind == "tells":
            self._tell(phase)
            await asyncio.sleep(0.3)
        else:
            self._at_once()

    def strike_in_thread(self, phase: str) -> None:
        if not self.is_due(phase):
            return
        if self.kind in ("absent", "slow"):
            time.sleep(self._slow_s)
        elif self.kind == "tells":
            self._tell(phase)
            time.sleep(0.3)
        else:
            self._at_once()

    def _at_once(self) -> None:
        if self.kind == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "refuses":
            raise WeightsMismatch("a scripted refusal")


def install(current: Callable[[], Fault | None]) -> None:
    """Strike in the threads of this process's passages."""

    class StruckProgress(passage.Progress):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            fault = current()
            if value == STRIKING_BUCKET and fault is not None:
                fault.strike_in_thread("send")

    rank.Progress = StruckProgress  # type: ignore[misc]
    difference = passage._difference

    def struck_difference(manifest: Any, index: int, part: Any) -> list[str]:
        fault = current()
        if fault is not None and index == len(manifest.buckets) - 1:
            if fault.kind == "flips" and fault.is_due("verify"):
                part[0] ^= 0x10
            fault.strike_in_thread("verify")
        return difference(manifest, index, part)

    passage._difference = struck_difference
