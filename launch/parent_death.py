"""Ties a child's life to the launcher's. Called first thing in every child process that the launcher starts. Linux
only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the launcher dies; exit at once if it died already.

    The signal is tied to the launcher's thread that started us: the launcher starts children from its main thread only.
    What this process starts itself is not covered; the undertaker kills the whole session.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it died between our start and the line above
        sys.exit(f"the launcher (process {parent_pid}) is gone")
