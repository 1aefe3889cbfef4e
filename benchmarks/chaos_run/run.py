"""One run of the command line, struck as its plan says, then judged from outside."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chaos_run.books import Books, imbalances, read_books, retrained
from chaos_run.leftovers import kill, leftovers
from chaos_run.plan import Fault, Shape, draw_faults
from chaos_run.progress import read_position
from chaos_run.victims import Victim, strike, victims

SHAPE = Shape(pretrain_steps=400, max_steps=80, evaluation_every_steps=20)
OVERRIDES = (
    "experiment=smoke",
    f"training.max_steps={SHAPE.max_steps}",
    f"learner.pretrain.steps={SHAPE.pretrain_steps}",
    f"evaluation.every_steps={SHAPE.evaluation_every_steps}",
    "learner.checkpoint_every_steps=5",
    "learner.lr=1.0e-5",  # the pace stays: no policy that gives all members of a group one reward
    "launch.silence_s=15",  # what is stopped is found within the run
    "launch.start_timeout_s=60",
)
ROLES = ("monitor", "parameter_server", "dispatcher", "grader", "environment", "generator", "evaluator", "learner")
KINDS = {"laptop": ROLES, "two_nodes_one_host": (*ROLES, "node")}
"""topology → the kinds of processes that it has"""
LIMIT_S = 300.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that happened. `at_s`: seconds since the launcher was started."""

    signal: str
    name: str
    kind: str
    moment: str
    step: int
    at_s: float

    def __str__(self) -> str:
        stop = "stop " if self.signal == "SIGSTOP" else ""
        return f"{stop}{self.name}@{self.moment}"


@dataclass(slots=True)
class Verdict:
    """`problems`: in words, empty where all is well."""

    seed: int
    topology: str
    folder: str
    struck: list[Struck] = field(default_factory=list)
    wall_s: float = 0.0
    restarts: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    finished: bool = False
    balanced: bool = False
    retrained: int = 0
    orphans: int = 0
    problems: list[str] = field(default_factory=list)


def topology_of(seed: int) -> str:
    """Every other seed has two nodes."""
    return list(KINDS)[seed % len(KINDS)]


class ChaosRun:
    """Everything of it lies in `place/<seed>`, which stays; its sockets in a temporary folder of its own."""

    def __init__(self, seed: int, place: Path) -> None:
        topology = topology_of(seed)
        self.place = place / str(seed)
        self.verdict = Verdict(seed, topology, str(self.place))
        self._faults = draw_faults(seed, KINDS[topology], SHAPE)

    def run(self) -> Verdict:
        """Blocks until the run has ended and is judged; nothing of it is alive then."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        temp = Path(tempfile.mkdtemp(prefix="chaos-"))
        try:
            code = self._launch(temp)
            self._judge(code, temp)
        finally:
            kill(temp)
            shutil.rmtree(temp, ignore_errors=True)
        return self.verdict

    def _launch(self, temp: Path) -> int | None:
        """The launcher's exit code; None where it did not end in time."""
        overrides = [*OVERRIDES, f"seed={self.verdict.seed}", f"topology={self.verdict.topology}"]
        began_s = time.monotonic()
        with (self.place / "console").open("w") as console:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "headrace.launch.cli", "launch", *overrides],
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "TMPDIR": str(temp)},
                start_new_session=True,
            )
            try:
                for fault in self._faults:
                    if not self._strike(fault, launcher, began_s):
                        break
                return launcher.wait(timeout=max(0.1, began_s + LIMIT_S - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
            finally:
                self.verdict.wall_s = round(time.monotonic() - began_s, 1)
                if launcher.poll() is None:
                    launcher.kill()
                    launcher.wait()

    def _strike(self, fault: Fault, launcher: subprocess.Popen[bytes], began_s: float) -> bool:
        """Wait for the moment, then strike; False where the run ended before."""
        due_s: float | None = None
        while launcher.poll() is None and time.monotonic() < began_s + LIMIT_S:
            folder = self.folder
            living = victims(folder) if folder is not None else []
            if living and folder is not None:
                position = read_position(folder)
                if due_s is None and position >= fault.position:
                    due_s = time.monotonic() + fault.delay_s
                if due_s is not None and time.monotonic() >= due_s:
                    victim = choose(living, fault)
                    if strike(victim, fault.signal):
                        at_s = round(time.monotonic() - began_s, 1)
                        struck = Struck(fault.signal, victim.name, victim.kind, fault.moment, position.step, at_s)
                        self.verdict.struck.append(struck)
                        return True
            time.sleep(POLL_S)
        return False

    @property
    def folder(self) -> Path | None:
        """The run's folder, once there is one."""
        return next((path.parent for path in (self.place / "runs").glob("*/*/config.yaml")), None)

    def _judge(self, code: int | None, temp: Path) -> None:
        verdict, folder = self.verdict, self.folder
        verdict.problems += endings(code, folder)
        verdict.finished = not verdict.problems
        if len(verdict.struck) < len(self._faults):
            verdict.problems.append(f"it ended after {len(verdict.struck)} of {len(self._faults)} faults")
        left = leftovers(temp, run_id_of(folder))
        verdict.orphans = len(left)
        verdict.problems += left
        if folder is None:
            return
        if (folder / "outcome.json").is_file():
            verdict.restarts = sum(json.loads((folder / "outcome.json").read_text())["restarts"].values())
        try:
            self._compare(read_books(folder))
        except (OSError, ValueError, TypeError, LookupError, sqlite3.Error) as error:
            verdict.problems.append(f"its books cannot be read: {type(error).__name__}: {error}")

    def _compare(self, books: Books) -> None:
        verdict = self.verdict
        verdict.trained = len(books.trained_ids)
        verdict.dropped = dict(books.dropped())
        verdict.retrained = retrained(books)
        problems = imbalances(books, SHAPE.max_steps)
        verdict.balanced = not problems
        if verdict.retrained:
            problems.append(f"{verdict.retrained} sessions were trained twice")
        verdict.problems += problems


def choose(living: list[Victim], fault: Fault) -> Victim:
    """Of the first kind that lives; its turn among several by the fault's own chance."""
    kind = next((kind for kind in fault.kinds if any(victim.kind == kind for victim in living)), living[0].kind)
    alike = [victim for victim in living if victim.kind == kind]
    return alike[int(fault.delay_s * 1000) % len(alike)]


def endings(code: int | None, folder: Path | None) -> list[str]:
    """What is wrong with how it ended, by the launcher's exit code and its word."""
    if code is None:
        return [f"the launcher had not ended after {LIMIT_S:.0f} s"]
    if folder is None or not (folder / "outcome.json").is_file():
        return [f"the launcher ended with code {code} and left no outcome.json"]
    outcome = json.loads((folder / "outcome.json").read_text())
    if code != 0 or outcome["ending"] != "finished":
        return [f"the launcher ended with code {code}: {outcome['ending']}: {outcome['reason']}"]
    return []


def run_id_of(folder: Path | None) -> str | None:
    """The name of its shared memory."""
    if folder is None:
        return None
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return str(config["run"]["id"])


def totals(verdicts: list[Verdict]) -> dict[str, Any]:
    """The figures of all runs."""
    kills = Counter(s.kind for v in verdicts for s in v.struck if s.signal == "SIGKILL")
    stops = Counter(s.kind for v in verdicts for s in v.struck if s.signal == "SIGSTOP")
    return {
        "runs": len(verdicts),
        "finished": sum(v.finished for v in verdicts),
        "balanced": sum(v.balanced for v in verdicts),
        "retrained": sum(v.retrained for v in verdicts),
        "orphans": sum(v.orphans for v in verdicts),
        "kills": kills.total(),
        "stops": stops.total(),
        "kills_by_kind": dict(sorted(kills.items())),
        "stops_by_kind": dict(sorted(stops.items())),
    }
