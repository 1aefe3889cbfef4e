"""A thousand seeded schedules of the dispatcher–environment–grader–learner triangle, and what they rest on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import schedules
from schedules import Trace, explore, run_one
from triangle import write_model_folder

THOUSAND = {
    "calm": 150,
    "kills": 300,
    "dispatcher_kills": 200,
    "learner_kills": 150,
    "server_kills": 100,
    "breaks": 100,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_model_folder(folder)
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """A process for each core: a schedule is nothing but computation."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context, initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What scripted trouble writes into the log would be most of the time of a schedule."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", THOUSAND)
def test_every_schedule_keeps_what_must_hold(scenario: str, model: Path, pool: ProcessPoolExecutor) -> None:
    """The ledger balances after every message, no session is trained twice, each ends once, no slot and no admission
    limit is exceeded, the run finishes, and nothing is left."""
    parts = [range(first, first + 10) for first in range(0, THOUSAND[scenario], 10)]
    done: Counter[str] = Counter()
    for part in pool.map(partial(explore, scenario, model=model), parts):
        done.update(part)
    assert done["schedules"] == THOUSAND[scenario]
    assert scenario in ("calm", "breaks") or done["kills"] > THOUSAND[scenario] / 2
    assert scenario != "breaks" or done["lost"] > THOUSAND[scenario]


@pytest.mark.parametrize("scenario", THOUSAND)
def test_some_schedules(scenario: str, model: Path) -> None:
    explore(scenario, range(1000, 1006), model)


def test_a_seed_gives_the_same_messages_byte_for_byte_and_another_seed_others(model: Path) -> None:
    def digest(seed: int) -> str:
        trace = Trace()
        run_one("kills", seed, model, trace)
        return trace.digest

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


def test_a_seed_is_replayed_in_another_process(model: Path) -> None:
    """The order of sets and hashes differs there; that of messages must not."""
    trace = Trace()
    run_one("kills", 5, model, trace)
    command = [sys.executable, "-W", "ignore", str(Path(schedules.__file__)), "kills", "--seed", "5"]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
    assert f"digest {trace.digest}" in done.stdout


def test_a_violation_names_its_seed_and_the_replay(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triangle.MOST_MESSAGES", 50)
    with pytest.raises(
        schedules.ScheduleFailed, match=r"calm, seed 9: .*\n(.*\n)*replay: .*schedules.py calm --seed 9"
    ):
        explore("calm", [9], model)
