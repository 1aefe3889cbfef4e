"""Explores seeded schedules of a scenario, and replays one with its whole message trace.

python tests/schedules/schedules.py kills --seed 17            # replay: prints every message
python tests/schedules/schedules.py kills --seeds 0:5000       # explore
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from triangle import Plan, Triangle, write_model_folder

from headrace.transport import run_virtual
from headrace.transport.codec import unpack
from headrace.transport.frames import Kind
from headrace.transport.network import Lane
from headrace.transport.schedule import Schedule

PEERS = ("environment", "grader", "generator")
SCENARIOS: dict[str, Callable[[int], Plan]] = {
    "calm": lambda seed: Plan.draw(seed),
    "kills": lambda seed: Plan.draw(seed, kill=PEERS),
    "server_kills": lambda seed: Plan.draw(seed, kill=("parameter_server",)),
    "dispatcher_kills": lambda seed: Plan.draw(seed, kill=("dispatcher",)),
    "learner_kills": lambda seed: Plan.draw(seed, kill=("learner",)),
    "all_kills": lambda seed: Plan.draw(seed, kill=(*PEERS, "parameter_server", "dispatcher", "learner")),
    "breaks": lambda seed: Plan.draw(seed, breaks=True),
}


@dataclass
class Trace:
    """Every message in the order of its arrival: a digest of all bytes and times, and lines for a reader."""

    lines: list[str] = field(default_factory=list)
    readable: bool = False
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def __call__(self, now_s: float, source: str, target: str, lane: Lane, frames: Sequence[Any]) -> None:
        self._digest.update(f"{now_s!r} {source} {target} {int(lane)}".encode())
        for frame in frames:
            self._digest.update(frame)
        if self.readable:
            said = ", ".join(_in_words(envelope) for envelope in unpack(frames[0])[5:])
            self.lines.append(f"{now_s:11.5f} {source} → {target}: {said}")

    @property
    def digest(self) -> str:
        return str(self._digest.hexdigest())


def _in_words(envelope: list[Any]) -> str:
    kind = Kind(envelope[0])
    if kind in (Kind.ASK, Kind.TELL, Kind.REPLY, Kind.ITEM):
        payload = envelope[-1]
        call = f" #{envelope[1]}" if kind is not Kind.TELL else ""
        if payload is None:
            return f"{kind.name}{call} none"
        return f"{kind.name}{call} {payload[0]} {str(payload[2])[:150]}"
    return f"{kind.name} {' '.join(str(value)[:150] for value in envelope[1:])}"


class ScheduleFailed(AssertionError):
    """Names the seed and how to see what happened."""


def run_one(scenario: str, seed: int, model: Path, trace: Trace | None = None) -> Triangle:
    """One schedule to its end. Raises Violation, Deadlock, or what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="schedule-", dir=_memory()))
    try:
        triangle = Triangle(seed, SCENARIOS[scenario](seed), folder, model, trace)
        run_virtual(triangle.run(), schedule=Schedule(seed))
        return triangle
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def explore(scenario: str, seeds: Iterable[int], model: Path) -> dict[str, int]:
    """Every seed. Raises ScheduleFailed at the first that violates something."""
    num = num_messages = num_kills = num_lost = 0
    for seed in seeds:
        try:
            triangle = run_one(scenario, seed, model)
        except Exception as error:
            raise ScheduleFailed(
                f"{scenario}, seed {seed}: {type(error).__name__}: {error}\n"
                f"replay: python tests/schedules/schedules.py {scenario} --seed {seed}"
            ) from error
        num += 1
        num_messages += triangle.num_messages
        num_kills += sum(triangle.processes.num_killed.values())
        num_lost += triangle.network.num_lost
    return {
        "schedules": num,
        "messages": num_messages,
        "kills": num_kills,
        "lost": num_lost,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--seed", type=int, help="replay this one, with every message")
    parser.add_argument("--seeds", default="0:100", help="explore from:to")
    parser.add_argument("--go-on", action="store_true", help="explore past failures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_model_folder(model)
        if options.seed is not None:
            logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(name)s: %(message)s", stream=sys.stdout)
            return _replay(options.scenario, options.seed, model)
        logging.disable(logging.CRITICAL)
        first, _, last = options.seeds.partition(":")
        bad = 0
        for seed in range(int(first), int(last)) if options.go_on else ():
            try:
                explore(options.scenario, [seed], model)
            except ScheduleFailed as error:
                bad += 1
                print(error, flush=True)
        if not options.go_on:
            print(explore(options.scenario, range(int(first), int(last)), model))
        return bad


def _replay(scenario: str, seed: int, model: Path) -> int:
    trace = Trace(readable=True)
    print(SCENARIOS[scenario](seed))
    problem: Exception | None = None
    try:
        run_one(scenario, seed, model, trace)
    except Exception as error:
        problem = error
    print("\n".join(trace.lines))
    print(f"{len(trace.lines)} messages, digest {trace.digest}")
    gc.collect()
    if problem is not None:
        print(f"{type(problem).__name__}: {problem}")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
