"""Linux process hygiene for grading children: die with the parent, limits, and a kill that leaves no zombie and no
grandchild.

Called inside the warden and its children (warden.py), never in an actor's process. Needs Linux (prctl, /proc).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit at once where it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that they can be found and reaped."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def limit_memory(memory_bytes: int) -> None:
    """Bound the address space of this process and of what it starts; no core dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_cpu(more_s: float) -> None:
    """Let this process use `more_s` seconds of processor time from now on; then the kernel ends it. Backs up the wall
    limit."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(usage.ru_utime + usage.ru_stime + more_s) + 1, hard))


def children_of(pid: int) -> list[int]:
    """The direct children of a process, zombies included; [] where it is gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue  # the thread ended between listing and reading
    return found


def kill_tree(pid: int) -> None:
    """Kill a child with its process group and everything below it, and wait for it. Idempotent."""
    _signal_group(pid)
    _signal(pid)
    with contextlib.suppress(ChildProcessError):  # it was reaped before
        os.waitpid(pid, 0)
    reap_strays(keep=frozenset())


def reap_strays(keep: frozenset[int]) -> int:
    """Kill and wait for every child of this process except `keep`, until none is left; the number of them.
    With `adopt_orphans` these are the descendants that escaped their group."""
    count = 0
    while strays := [pid for pid in children_of(os.getpid()) if pid not in keep]:
        for pid in strays:
            _signal_group(pid)
            _signal(pid)
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue
            count += 1
    return count


def _signal_group(pid: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}) failed: {os.strerror(code)}; grading children need Linux")
