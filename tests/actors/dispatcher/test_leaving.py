"""An environment leaves in mid-run: it gets no more sessions, and what it leaves behind is no attempt and no loss."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.transport import LoopbackNetwork, Runtime, run_virtual


@pytest.mark.parametrize("finishes", [True, False], ids=["finishes", "is stopped"])
def test_a_leave_costs_no_session_an_attempt(
    finishes: bool, peers: ModuleType, tasks: TaskSource, tmp_path: Path
) -> None:
    async def main() -> tuple[Any, Dispatcher]:
        world = peers.World()
        dispatcher = Dispatcher(
            tasks=tasks,
            group_size=2,
            batch_sessions=8,
            evaluation=EvaluationSettings(num_prompts=8, samples=1, every_steps=10, timeout_s=200.0),
            ledger_path=str(tmp_path / "ledger.sqlite"),
        )
        network = LoopbackNetwork()
        host, second = Runtime(network), None
        await host.start()
        for name in ("supervisor", "monitor"):
            await host.add(peers.Collector(world=world), name)
        await host.add(peers.ScriptedParameterServer(world=world), "parameter_server")
        await host.add(peers.ScriptedGrader(world=world), "grader")
        await host.add(dispatcher, "dispatcher")
        await host.add(peers.ScriptedEnvironment(world=world, slots=8), "environment/0")
        second = Runtime(network, directory=host.address)
        await second.start()
        leaver = peers.ScriptedEnvironment(world=world, slots=8)
        await second.add(leaver, "environment/1")
        await host.add(peers.ScriptedLearner(world=world, max_steps=40), "learner")

        await asyncio.sleep(12.3)
        had = set(leaver.sessions)
        assert len(had) > 2
        host.directory.process_leaving(second.incarnation)
        await asyncio.sleep(0.2)
        got = set(leaver.attempts)
        await asyncio.sleep(1.0)
        assert set(leaver.attempts) == got, "it was given more"
        if finishes:
            await asyncio.wait_for(second.left, 1000)
            assert not leaver.sessions
        await second.stop(grace_s=0.0)
        await asyncio.wait_for(world.finished.wait(), 1e5)
        await host.stop()
        return world, dispatcher

    world, dispatcher = run_virtual(main())
    counters = dispatcher.training.counters
    assert (counters["attempts_lost"], counters["attempts_failed"], counters["graded_twice_or_late"]) == (0, 0, 0)
    assert len(world.trained) == len({session_id for _, session_id, _ in world.trained}) == 40 * 8
    counts = dispatcher.training.ledger.snapshot()
    assert counts["issued"] == counts["trained"] + counts["dropped"]
    evaluations = [metrics.values for metrics in world.metrics if metrics.stream == "eval"]
    assert len(evaluations) > 2
    assert all(values["missing"] == 0 for values in evaluations)
