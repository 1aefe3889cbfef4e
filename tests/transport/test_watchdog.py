"""The event loop's watchdog: who holds the loop is named while it is held, once, at rising intervals."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.transport import Actor, Context, LoopbackNetwork, Runtime, handles, message, run_virtual
from headrace.transport.watchdog import LagWatch, Watchdog

LIMIT_S = 20.0


class Heard(logging.Handler):
    """The watchdog's lines; `wait_for` blocks the calling thread until one has the text."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, *texts: str) -> str:
        def found() -> str:
            return next((line for line in self.lines if all(text in line for text in texts)), "")

        with self._changed:
            assert self._changed.wait_for(found, LIMIT_S), f"no line with {texts} among {self.lines}"
            return found()

    def wait_for_lines(self, num: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= num, LIMIT_S), self.lines


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logger = logging.getLogger("headrace.transport.watchdog")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@message("watchdog.step")
@dataclass(frozen=True, slots=True)
class Step:
    pass


class Careless(Actor):
    """Its handler does what nobody should do in one."""

    def __init__(self, hold: Callable[[], object]) -> None:
        self.hold = hold

    async def on_start(self, context: Context) -> None:
        context.spawn(self.idle(), "idle")

    async def idle(self) -> None:
        await self.context.clock.sleep(3600)

    @handles(Step)
    async def step(self, message: Step) -> None:
        self.hold()


def run(hold: Callable[[], object], then: Callable[[], object] = lambda: None) -> None:
    async def main() -> None:
        runtime = Runtime(LoopbackNetwork(), lag_warn_s=0.5)
        await runtime.start()
        await runtime.add(Careless(hold), "environment/0")
        await runtime.context.ask("environment", Step(), timeout_s=60)
        await asyncio.get_running_loop().run_in_executor(None, then)
        await runtime.stop()

    asyncio.run(main())


def seconds(lines: list[str]) -> list[float]:
    """The time that each line tells."""
    return [float(re.findall(r"(?:for|after) (\d+\.\d+) s", line)[0]) for line in lines]


def test_a_handler_that_sleeps_is_named_while_it_sleeps(heard: Heard) -> None:
    """messaging fault 26: the loop cannot say it, so a thread does, with the stack; the handler goes on unharmed."""
    told: list[str] = []

    def hold() -> None:  # as time.sleep would, until the warning is there
        told.append(heard.wait_for("environment/0.step has held the event loop for"))

    run(hold, then=lambda: heard.wait_for("environment/0.step held the event loop for", "run_blocking"))
    assert "in hold: told.append(" in told[0], "the stack of the loop's thread"
    held = [line for line in heard.lines if line.startswith("environment/0.step ")]
    assert ["has held" in line for line in held[:1] + held[-1:]] == [True, False], heard.lines
    # A machine that stalls meanwhile brings later warnings, each once, and lines about a loop that is starved.
    assert seconds(held[:-1]) == sorted(set(seconds(held[:-1])))


@pytest.mark.parametrize("name", ["a/0.step", None])
def test_warnings_rise_and_code_outside_of_actors_is_told_of_later(heard: Heard, name: str | None) -> None:
    """A loop that is late without an actor's doing is starved, as any on a loaded machine, until it lasts."""

    async def main() -> None:
        watchdog = Watchdog(asyncio.get_running_loop(), lambda: name, warn_s=0.5)
        watchdog.start()
        await asyncio.sleep(0)
        heard.wait_for_lines(2 if name else 1)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, heard.wait_for, "the event loop turns again")
        watchdog.stop()

    asyncio.run(main())
    *early, second, last = heard.lines
    assert [line.startswith("a/0.step has held the event loop for ") for line in early] == ([True] if name else [])
    who = name or "code outside of the actors' handlers"
    assert second.startswith(f"{who} has held the event loop for ")
    assert last.startswith("the event loop turns again, after ")
    assert all(at_s < 2 for at_s in seconds(early)) or seconds([second])[0] >= 5
    assert 2 <= seconds([second])[0] <= seconds([last])[0]


def test_a_loop_that_turns_or_has_ended_is_not_spoken_of(heard: Heard) -> None:
    watchdogs: list[Watchdog] = []

    async def main() -> None:
        watchdogs.append(Watchdog(asyncio.get_running_loop(), lambda: "nobody", warn_s=0.5))
        watchdogs[0].start()
        await asyncio.sleep(0.2)

    asyncio.run(main())  # nobody stops it: its thread ends with the loop
    for thread in threading.enumerate():
        if thread.name == "event-loop-watchdog":
            thread.join(LIMIT_S)
            assert not thread.is_alive()
    assert [line for line in heard.lines if "held" in line] == []


def test_in_virtual_time_there_is_no_thread() -> None:
    async def main() -> None:
        before = threading.active_count()
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        assert threading.active_count() == before
        await runtime.stop()

    run_virtual(main())


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 10)), max_size=60))
def test_each_episode_is_told_from_the_limit_on_and_ended_once(moves: list[tuple[bool, float]]) -> None:
    watch = LagWatch(1.0)
    now_s = beat_s = 0.0
    told: list[float] = []
    for beats, seconds in moves:
        now_s += seconds
        ended_s = watch.turned(beat_s)
        assert (ended_s is not None) <= bool(told), "only what was told of has an end"
        if ended_s is not None:
            told = []
        held_s = watch.look(now_s, beat_s)
        if held_s is not None:
            assert held_s == now_s - beat_s >= 1.0
            assert not told or held_s >= 2 * told[-1] or held_s >= 5, "the intervals rise"
            told.append(held_s)
        elif now_s - beat_s >= 1.0:
            assert told, "what passes the limit is told"
        if beats:
            beat_s = now_s


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="lag_warn_s must be > 0"):
        Runtime(LoopbackNetwork(), lag_warn_s=0.0)


def test_it_costs_less_than_a_thousandth_of_a_core() -> None:
    """Of the process's own CPU time, with the default limit, in two idle seconds."""

    async def cpu_s() -> float:
        loop = asyncio.get_running_loop()
        watchdog = Watchdog(loop, lambda: None)
        began_s = time.process_time()
        watchdog.start()
        done = loop.create_future()
        loop.call_later(2.0, done.set_result, None)
        await done
        used_s = time.process_time() - began_s
        watchdog.stop()
        return used_s

    assert asyncio.run(cpu_s()) < 2.0 * 0.01, "tenfold, for loaded machines"
