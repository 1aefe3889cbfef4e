"""The monitor: every record on disk as it came, TensorBoard without torch, shares of time that add up to one."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.messages import Metrics
from headrace.actors.monitor.activity import ActivityBook, shares
from headrace.actors.monitor.actor import Monitor
from headrace.actors.monitor.console import ConsoleLine
from headrace.transport import ActivitySnapshot, Actor, Context, LoopbackNetwork, Runtime, run_virtual


def snapshot(name: str, busy_s: float, idle_s: float, **blocked_s: float) -> ActivitySnapshot:
    wall_s = busy_s + idle_s + sum(blocked_s.values())
    return ActivitySnapshot(name, wall_s, busy_s, idle_s, blocked_s, {}, {})


class _Worker(Actor):
    """Busy a quarter of the time, in a working block."""

    async def on_start(self, context: Context) -> None:
        context.spawn(self._work(), "work")

    async def _work(self) -> None:
        while True:
            with self.context.activity.working("lift"):
                await self.context.clock.sleep(1.0)
            await self.context.clock.sleep(3.0)


def run_monitor(folder: Path, records: list[Metrics], *, seconds: float = 21.0, **settings: Any) -> None:
    async def main() -> None:
        runtime = Runtime(LoopbackNetwork())
        await runtime.start()
        await runtime.add(Monitor(run_dir=str(folder), **settings), "monitor")
        await runtime.add(_Worker(), "learner/0")
        await runtime.add(_Worker(), "of_my_own/0")
        for record in records:
            await runtime.context.tell("monitor", record)
        await asyncio.sleep(seconds)
        await runtime.stop()

    run_virtual(main())


def test_every_record_is_kept_keyed_by_its_own_step(tmp_path: Path) -> None:
    """cases L136: wandb/wandb#10628: two loops with counters of their own, late and repeated steps after a resume."""
    records = [
        Metrics("train", "step", 10, {"loss": 1.0}),
        Metrics("weights", "version", 3, {"pause_s": 0.02}),
        Metrics("train", "step", 9, {"loss": 2.0}),
        Metrics("train", "step", 10, {"loss": 3.0}),
        Metrics("weights", "version", 2, {"pause_s": float("nan")}),
    ]
    run_monitor(tmp_path, records, tensorboard=False)
    run_monitor(tmp_path, records[:1], tensorboard=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    kept = [(line["stream"], line["step_name"], line["step"], line["values"]) for line in lines]
    expected = [(r.stream, r.step_name, r.step, r.values) for r in [*records[:4]]]
    assert kept == [*expected, ("weights", "version", 2, {"pause_s": None}), ("train", "step", 10, {"loss": 1.0})]


def test_time_is_accounted_for_by_actor_and_role(tmp_path: Path) -> None:
    run_monitor(tmp_path, [], tensorboard=False, activity_every_s=4.0)
    activity = json.loads((tmp_path / "activity.json").read_text())
    assert set(activity["roles"]) == {"learner", "of_my_own", "monitor"}
    for role in ("learner", "of_my_own"):
        assert activity["roles"][role]["busy"] == pytest.approx(0.25, abs=0.05)
    for role, share in activity["roles"].items():
        assert share["busy"] + sum(share["blocked"].values()) + share["idle"] == pytest.approx(1.0), role
    assert activity["actors"]["learner/0"]["working_s"]["lift"] > 4.0


def test_tensorboard_gets_the_senders_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_monitor(tmp_path, [Metrics("train", "step", step, {"ess/token": step / 10}) for step in (1, 2, 3)])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("train/ess/token")
    assert [(event.step, round(event.value, 3)) for event in scalars] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_the_monitor_and_the_dispatcher_import_no_torch() -> None:
    code = (
        "import sys, headrace.actors.monitor.actor, headrace.actors.dispatcher.actor, headrace.launch.report\n"
        "from headrace.actors.monitor.tensorboard import TensorBoardFile\n"
        "from pathlib import Path; import tempfile; TensorBoardFile(Path(tempfile.mkdtemp())).close()\n"
        "print([name for name in ('torch', 'transformers', 'vllm', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100)), max_size=6))
def test_shares_add_up_to_one(times: list[tuple[float, float, float]]) -> None:
    together = shares([snapshot(f"a/{i}", busy, idle, peer=blocked) for i, (busy, idle, blocked) in enumerate(times)])
    assert together.busy + together.idle + sum(together.blocked.values()) == pytest.approx(1.0)


def test_an_earlier_incarnations_time_counts_too() -> None:
    book = ActivityBook()
    for taken in (snapshot("generator/0", 5, 5), snapshot("generator/0", 10, 10), snapshot("generator/0", 0, 20)):
        book.take(taken)
    book.take(snapshot("generator/1", 20, 0))
    assert book.actors()["generator/0"].busy == pytest.approx(0.25)
    assert book.roles()["generator"].busy == pytest.approx(0.5)


def test_the_console_line_shows_what_is_known() -> None:
    console = ConsoleLine()
    assert console.line(time_s=5.0, roles={}) == "0:05"
    console.take(
        Metrics(
            "dispatcher",
            "wall_s",
            10,
            {"issued": 72, "trained": 0, "dropped": 0, "version": 3, "running": 64, "ready": 8},
        )
    )
    console.take(Metrics("pretrain", "step", 9, {"loss": 0.65}))
    assert "pretrain 9" in (line := console.line(time_s=60.0, roles={}))
    assert "loss 0.650" in line
    console.take(Metrics("train", "step", 12, {"reward/mean": 0.5, "lag/token_mean": 1.25, "ess/token": 0.9}))
    console.take(Metrics("weights", "version", 3, {"pause_s": 0.03}))
    console.take(Metrics("eval", "version", 1, {"reward": 0.29, "greedy": 0.48}))
    console.take(
        Metrics("dispatcher", "wall_s", 12, {"trained": 900, "dropped": 100, "trained_tokens": 9000, "ready": 9})
    )
    line = console.line(time_s=65.0, roles={"learner": shares([snapshot("learner/0", 8, 2)])})
    for part in (
        "1:05", "step 12", "version 3", "reward 0.500", "held-out 0.290", "greedy 0.480", "lag 1.2", "200 samples/s",
        "1800 tokens/s", "pause 30 ms", "64 running 9 ready", "busy learner 80%",
    ):  # fmt: skip
        assert part in line, line
    assert "loss" not in line, "pre-training is over"


def test_the_console_line_tells_how_long_a_stage_still_takes() -> None:
    """At the pace since it was first seen; and nothing of sessions before there are any."""
    console = ConsoleLine()
    console.take(Metrics("dispatcher", "wall_s", 1, {"issued": 0, "running": 0, "ready": 0}))
    console.take(Metrics("pretrain", "step", 100, {"steps_total": 900}))
    assert console.line(time_s=60.0, roles={}) == "1:00 · pretrain 100/900"
    console.take(Metrics("pretrain", "step", 300, {"steps_total": 900}))
    assert console.line(time_s=80.0, roles={}) == "1:20 · pretrain 300/900 (1:00 left)"
    console.take(Metrics("pretrain", "step", 301, {"steps_total": 90_000}))
    assert console.line(time_s=3_680.0, roles={}) == "1:01:20 · pretrain 301/90000 (18 days left)"
    console.take(Metrics("pretrain", "step", 301, {"steps_total": 600}))
    assert console.line(time_s=3_680.0, roles={}) == "1:01:20 · pretrain 301/600 (1:29:45 left)"
    console.take(Metrics("pretrain", "step", 900, {"steps_total": 900}))
    assert console.line(time_s=140.0, roles={}) == "2:20 · pretrain 900/900"


def test_the_console_line_says_what_is_missing() -> None:
    console = ConsoleLine()
    console.take(Metrics("eval", "version", 1, {"reward": 1.0, "sessions": 12, "missing": 8}))
    console.take(Metrics("dispatcher", "wall_s", 12, {"graded": 231, "graded_without_reward": 171}))
    assert "held-out 1.000 · no reward 74.0% · held-out missing 66.7%" in console.line(time_s=1.0, roles={})
    console.take(Metrics("eval", "version", 2, {"reward": 1.0, "sessions": 12, "missing": 0}))
    console.take(Metrics("dispatcher", "wall_s", 14, {"graded": 400_000, "graded_without_reward": 1}))
    assert "held-out 1.000 · no reward 0.1%" in console.line(time_s=2.0, roles={})
    console.take(Metrics("dispatcher", "wall_s", 16, {"graded": 232, "graded_without_reward": 0}))
    assert "no reward" not in console.line(time_s=3.0, roles={})


@pytest.mark.parametrize("wrong", [{"console_every_s": -1}, {"activity_every_s": 0}])
def test_values_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Monitor(run_dir="unused", **wrong)
