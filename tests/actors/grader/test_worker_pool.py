"""Killable grading: limits, no survivors, workers that live on."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.actors.grader import worker_pool
from headrace.actors.grader.worker_pool import WorkerFailed, WorkerPool
from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]


def leftovers() -> list[int]:
    """Live or zombie processes that a grading left behind, on the whole machine, started by these tests."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"left-behind-by-a-grading" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def children() -> dict[int, str]:
    """State of each child of this process."""
    states = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            states[int(folder.name)] = fields[0]
    return states


def test_twenty_endless_gradings_leave_no_zombie_and_no_grandchild(
    make_session: MakeSession, hostile_gradings: Any
) -> None:
    """cases A37: rllm-org/rllm#915: killed, reaped, grandchildren too, also those that left the process group."""

    async def main() -> None:
        before = children()
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=2, timeout_s=0.5)
        commands = ["spin 60"] * 18 + ["spawn_then_spin", "spawn stay", "spawn escape"]
        grades = await asyncio.gather(*(pool.grade(make_session(command)) for command in commands))
        assert [grade.reward for grade in grades[:19]] == [0.0] * 19
        assert pool.num_killed >= 19, "starting a process may take a busy machine past the limit too"
        assert (await pool.grade(make_session("fine"))).reward == 1.0, "usable after the kills"
        await pool.close()
        assert leftovers() == []
        assert set(children()) - set(before) == set(), "no child is left, in no state"

    asyncio.run(main())


def test_a_spinning_grading_holds_up_nobody_else(
    make_session: MakeSession, hostile_gradings: Any, tmp_path: Path
) -> None:
    """cases A38: verl-project/verl#288: processor-bound grading never blocks the loop nor the other workers: it spins
    until the twenty others have been graded, whatever the speed of the machine."""
    release = tmp_path / "release"

    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=2, timeout_s=120.0)
        spinning = asyncio.create_task(pool.grade(make_session(f"spin_until {release}")))
        grades = await asyncio.gather(*(pool.grade(make_session("fine")) for _ in range(20)))
        assert [grade.reward for grade in grades] == [1.0] * 20
        assert not spinning.done()
        release.touch()
        assert (await spinning).reward == 1.0
        await pool.close()

    asyncio.run(main())


def test_a_spinning_grading_is_interrupted_at_its_limit(make_session: MakeSession, hostile_gradings: Any) -> None:
    """cases A38: the limit interrupts it, long before it would have ended by itself."""

    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=0.4)
        began_s = time.monotonic()
        grade = await pool.grade(make_session("spin 120"))
        assert grade.notes["grading"] == "timed_out"
        assert time.monotonic() - began_s < 60.0
        await pool.close()

    asyncio.run(main())


def test_what_a_killed_grading_is_worth_is_the_gradings_rule(make_session: MakeSession, hostile_gradings: Any) -> None:
    """A hostile answer is 0.0; an infrastructure failure is no reward."""

    async def main() -> None:
        for grading, reward in ((hostile_gradings.Obedient(), 0.0), (hostile_gradings.Forgiving(), None)):
            pool = WorkerPool(grading, num_workers=1, timeout_s=0.5)
            timed_out = await pool.grade(make_session("spin 9"))
            crashed = await pool.grade(make_session("crash"))
            assert [timed_out.reward, crashed.reward] == [reward, reward]
            assert [timed_out.notes["grading"], crashed.notes["grading"]] == ["timed_out", "died"]
            await pool.close()

    asyncio.run(main())


def test_memory_is_bounded(make_session: MakeSession, hostile_gradings: Any) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=5.0, memory_bytes=1 << 30)
        grade = await pool.grade(make_session(f"eat {2 << 30}"))
        assert grade.reward == 0.0
        assert "memory" in grade.notes["grading_detail"]
        assert (await pool.grade(make_session("fine"))).reward == 1.0
        await pool.close()

    asyncio.run(main())


def test_an_exception_is_no_reward_with_its_traceback(make_session: MakeSession, hostile_gradings: Any) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=5.0)
        grade = await pool.grade(make_session("raise now"))
        assert grade.reward is None
        assert "told to raise now" in grade.notes["grading_detail"]
        await pool.close()

    asyncio.run(main())


def test_the_child_is_reused_and_its_death_while_idle_costs_nobody(
    make_session: MakeSession, hostile_gradings: Any
) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=5.0)
        first, second = [(await pool.grade(make_session("fine"))).notes["pid"] for _ in range(2)]
        assert first == second
        os.kill(int(second), 9)
        third = await pool.grade(make_session("fine"))
        assert third.reward == 1.0
        assert third.notes["pid"] != second
        await pool.close()

    asyncio.run(main())


def test_a_lost_warden_is_an_infrastructure_failure_and_is_replaced(
    make_session: MakeSession, hostile_gradings: Any
) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=5.0)
        before = children()
        await pool.grade(make_session("fine"))
        (warden,) = set(children()) - set(before)
        os.kill(warden, 9)
        with pytest.raises(WorkerFailed, match=f"pid {warden}"):
            await pool.grade(make_session("fine"))
        assert (await pool.grade(make_session("fine"))).reward == 1.0
        await pool.close()
        assert set(children()) - set(before) == set()

    asyncio.run(main())


def test_a_grading_that_cannot_be_loaded_says_why(make_session: MakeSession, hostile_gradings: Any) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Unloadable(), num_workers=1, timeout_s=5.0)
        with pytest.raises(WorkerFailed, match="the library is not installed"):
            await pool.grade(make_session("fine"))
        await pool.close()

    asyncio.run(main())


def test_closing_answers_who_waits(make_session: MakeSession, hostile_gradings: Any) -> None:
    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=30.0)
        await pool.grade(make_session("fine"))
        waiting = [asyncio.ensure_future(pool.grade(make_session("spin 30"))) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, WorkerFailed) for result in results)

    asyncio.run(main())


@pytest.mark.parametrize(("setting", "value"), [("num_workers", 0), ("timeout_s", 0.0)])
def test_settings_are_checked(setting: str, value: float, hostile_gradings: Any) -> None:
    settings: dict[str, Any] = {"num_workers": 1, "timeout_s": 1.0, setting: value}
    with pytest.raises(ValueError, match=setting):
        WorkerPool(hostile_gradings.Obedient(), **settings)


def test_a_warden_that_talks_nonsense_fails_its_grading_by_name(
    make_session: MakeSession, hostile_gradings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no msgpack once ended the worker with its exception unseen, and the grading waited for ever."""
    nonsense = (
        "import socket, sys; warden = socket.socket(fileno=int(sys.argv[1])); "
        "warden.sendall(b'\\1\\0\\0\\0\\xc1'); warden.recv(1 << 20)"
    )

    def spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", nonsense, str(theirs.fileno())]
            return subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours

    async def main() -> None:
        pool = WorkerPool(hostile_gradings.Obedient(), num_workers=1, timeout_s=5)
        with monkeypatch.context() as patched:
            patched.setattr(worker_pool, "_spawn_warden", spawn)
            async with asyncio.timeout(60):
                with pytest.raises(WorkerFailed, match=r"FormatError|unpack"):
                    await pool.grade(make_session("fine"))
        assert (await pool.grade(make_session("fine"))).reward == 1.0, "the next one has a new warden"
        await pool.close()

    asyncio.run(main())
