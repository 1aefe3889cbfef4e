"""Every edge between the real actor kinds, its receiver a hundred times slower than the rest: what waits at any place
of the topology stays below a bound that the configuration gives, and the run still ends with its ledger whole."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from edges import Edge, all_edges
from triangle import Plan, Triangle, write_model_folder

from headrace.transport import Actor, run_virtual
from headrace.transport.schedule import Schedule

SLOTS, ENVIRONMENTS, BATCH, LAG = 8, 2, 8, 1
SLOW_S = 1.0
"""what a handler takes, where sessions take ten milliseconds"""

OPEN_SESSIONS = (LAG + 2) * BATCH
"""what admission lets be issued and not be trained"""
ASKS = 2 * SLOTS * ENVIRONMENTS + OPEN_SESSIONS
"""Asks that may be open at one process: two for each session that sits in a slot or waits for its grade, one for each
that waits to be delivered; what the learner and the weights add is below ten."""
TASKS = ASKS + 64
"""of one process: an ask's handler or session each; graders' workers and the fixed tasks of each actor"""

EDGES = [edge for edge in all_edges() if edge.receiver not in ("monitor", "supervisor", "learner", "relay")]


class Slowed(Triangle):
    """`edge.receiver` takes its time with `edge.message`. `peaks`: the most that waited at one process, by place."""

    def __init__(self, edge: Edge, folder: Path, model: Path) -> None:
        plan = Plan(
            counts={"environment": ENVIRONMENTS, "grader": 1, "generator": 1},
            group_size=4,
            batch_sessions=BATCH,
            max_lag=LAG,
            steps=4,
            slots=SLOTS,
            checkpoint_every=1,
            capacities={},
            evaluate=False,
            over_age="train",
            step_s=0.0,
            token_s=0.01,
            trouble=0.0,
        )
        super().__init__(0, plan, folder, model)
        self.edge = edge
        self.peaks: Counter[str] = Counter()

    def _maker(self, name: str) -> Callable[[], Actor]:
        make = super()._maker(name)

        def slowed() -> Actor:
            actor = make()
            if name.startswith(f"{self.edge.receiver}/"):
                self._slow(actor)
            return actor

        return slowed

    def _slow(self, actor: Actor) -> None:
        handle = getattr(actor, self.edge.spec.method)

        async def slow(message: object) -> object:
            await actor.context.clock.sleep(SLOW_S)
            return await handle(message)

        setattr(actor, self.edge.spec.method, slow)

    def _check_now(self) -> None:
        super()._check_now()
        if self.num_messages % 8:
            return
        for process in self.processes.living.values():
            if not process.settled.is_set():
                continue
            runtime = process.runtime
            self._note("calls", len(runtime._calls))
            for cell in runtime._cells.values():
                self._note("mailbox", len(cell.mailbox))
                self._note("tasks", len(cell._tasks))
            for link in runtime._links._links.values():
                self._note("serving", len(link.serving))
                self._note("outbox_bytes", link.waiting_bytes)
                for credit in link._credits.values():
                    self._note("waiters", len(credit._waiters))

    def _note(self, place: str, num: int) -> None:
        self.peaks[place] = max(self.peaks[place], num)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model_folder(folder)
    return folder


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("edge", EDGES, ids=str)
def test_a_slow_receiver_lets_nothing_grow(edge: Edge, tmp_path: Path, model: Path) -> None:
    slowed = Slowed(edge, tmp_path, model)
    run_virtual(slowed.run(), schedule=Schedule(0))
    peaks = slowed.peaks
    for place in ("calls", "mailbox", "serving", "waiters"):
        assert peaks[place] <= ASKS + 10, peaks
    assert peaks["tasks"] <= TASKS, peaks
    assert peaks["outbox_bytes"] <= 64 * 1024, peaks


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_news_of_versions_to_an_absent_dispatcher_do_not_pile_up(tmp_path: Path, model: Path) -> None:
    """The parameter server begins a task for each piece of news. Versions come from steps, steps from batches, and
    batches from the dispatcher: without it none follow, so that two for each staging buffer is all that can wait."""
    edge = next(edge for edge in EDGES if edge.message.__name__ == "VersionServed")
    slowed = Slowed(edge, tmp_path, model)
    most = 0

    async def without_dispatcher() -> None:
        nonlocal most
        await asyncio.sleep(1.0)
        slowed.processes.kill("dispatcher/0", noticed_after_s=0.1)
        for _ in range(600):
            await asyncio.sleep(1.0)
            server = slowed.processes.living["parameter_server/0"].runtime._cells["parameter_server/0"]
            most = max(most, sum(":tell " in task.get_name() for task in server._tasks))
        slowed._restart("dispatcher/0")

    async def main() -> None:
        absence = asyncio.ensure_future(without_dispatcher())
        await slowed.run()
        await absence

    run_virtual(main(), schedule=Schedule(0))
    assert most <= 4
