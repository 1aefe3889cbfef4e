"""Messages between two processes of one machine: Headrace beside what it is built on and what people use.

    python benchmarks/messaging.py [--quick] [--json FILE] [--without ray …]

Round trips, pipelined round trips, one-way messages and numpy arrays through the public interface of each system, the
systems in turns, the median of the rounds. Then what belongs to Headrace alone: the size at which an array gets a frame
of its own, the codec on a rollout, round trips while 1 GiB flows past them, and how long a caller waits for the error
after its peer was killed. xoscar and Ray are the optional extra `peers`; who is absent is skipped by name.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contenders import own
from contenders.contender import die_with_parent

CONTENDERS = {
    "headrace": ("headrace", ("ipc",)),
    "headrace_stream": ("headrace", ("stream",)),
    "headrace_tcp": ("headrace", ("tcp",)),
    "headrace_tcp_curve": ("headrace", ("curve",)),
    "zmq_sync": ("zmq_sync", ()),
    "zmq_asyncio": ("zmq_asyncio", ()),
    "xoscar": ("xoscar_actors", ()),
    "ray": ("ray_actors", ()),
}
OUTSTANDING = 200
KIB, MIB = 1024, 1024 * 1024


@dataclass
class Load:
    """How much each measurement of one round does. Ray, an order of magnitude slower, does a tenth."""

    rounds: int
    asks: int
    pipelined: int
    tells: int
    arrays_64k: int
    arrays_8m: int

    def of(self, name: str) -> Load:
        share = 0.1 if name == "ray" else 0.4 if name == "xoscar" else 1.0
        numbers = (self.asks, self.pipelined, self.tells, self.arrays_64k, self.arrays_8m)
        return Load(self.rounds, *(max(4, int(number * share)) for number in numbers))


FULL = Load(5, 2_000, 20_000, 20_000, 1_000, 24)
QUICK = Load(2, 300, 3_000, 3_000, 150, 6)


@dataclass
class Figures:
    asks_s: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, rate: float) -> None:
        self.rates.setdefault(name, []).append(rate)

    def summary(self) -> dict[str, float]:
        ordered = sorted(self.asks_s)
        return {
            "ask_200B_p50_us": ordered[len(ordered) // 2] * 1e6,
            "ask_200B_p99_us": ordered[int(len(ordered) * 0.99)] * 1e6,
        } | {name: statistics.median(rates) for name, rates in self.rates.items()}


def measure(client: Any, load: Load, figures: Figures) -> None:
    """One round."""
    figures.asks_s += client.asks(load.asks)
    figures.add("ask_pipelined_per_s", load.pipelined / client.pipelined(load.pipelined, OUTSTANDING))
    figures.add("tell_200B_per_s", load.tells / client.tells(load.tells))
    for label, nbytes, num in (("64KiB", 64 * KIB, load.arrays_64k), ("8MiB", 8 * MIB, load.arrays_8m)):
        figures.add(f"array_{label}_MB_per_s", nbytes * num / client.arrays(nbytes, num) / 1e6)


# --- each client in a process of its own ------------------------------------------------------------------------------


def client_process(name: str, load: Load, pipe: Connection) -> None:
    """Makes the client, then one round for each word; None ends it with the summary. Ctrl-C is the parent's: it kills
    this process, whose server ends with its standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    module, arguments = CONTENDERS[name]
    try:
        client = importlib.import_module(f"contenders.{module}").Client(*arguments)
    except ImportError as error:
        pipe.send(f"skipped: {error}")
        return
    client.asks(min(200, load.asks))
    pipe.send("ready")
    figures = Figures()
    while pipe.recv() is not None:
        measure(client, load, figures)
        pipe.send("done")
    pipe.send(figures.summary())
    client.close()
    os._exit(0)  # whatever threads of its own a system left


def alone_process(quick: bool, pipe: Connection) -> None:
    """Sends what is measured of Headrace alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    pipe.send(own.figures(quick=quick))


class Child:
    """`target(*arguments, pipe)` in a process of its own."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(*arguments, theirs))
        self._process.start()
        theirs.close()  # so that its end is heard of

    def wait(self) -> None:
        self._process.join(30)

    def kill(self) -> None:
        """It may have ended already."""
        self._process.kill()
        self._process.join()


class Contestant:
    def __init__(self, name: str, load: Load) -> None:
        self.name = name
        self.child = Child(client_process, name, load.of(name))

    def wait_until_ready(self) -> str:
        """ "ready", or why it is skipped."""
        return str(self.child.pipe.recv())

    def round(self) -> None:
        self.child.pipe.send("round")
        self.child.pipe.recv()

    def finish(self) -> dict[str, float]:
        self.child.pipe.send(None)
        summary: dict[str, float] = self.child.pipe.recv()
        self.child.wait()
        return summary


def contest(names: list[str], load: Load) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Figures by contender; and why others were skipped. Those that are not waited for in turns go last: their daemons
    work on beside the others."""
    results: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    for group in ([name for name in names if name != "ray"], [name for name in names if name == "ray"]):
        with ExitStack() as started:
            contestants = []
            for name in group:
                say(f"starting {name}")
                contestant = Contestant(name, load)
                started.callback(contestant.child.kill)
                state = contestant.wait_until_ready()
                if state == "ready":
                    contestants.append(contestant)
                else:
                    skipped[name] = state
            for number in range(load.rounds):
                for contestant in contestants:
                    say(f"round {number + 1} of {load.rounds}: {contestant.name}")
                    contestant.round()
            results |= {contestant.name: contestant.finish() for contestant in contestants}
    return results, skipped


# --- output -----------------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="" if sys.stderr.isatty() else "\n", file=sys.stderr)


def table(results: dict[str, dict[str, float]]) -> str:
    columns = {
        "ask p50 µs": ("ask_200B_p50_us", "{:.0f}"),
        "p99": ("ask_200B_p99_us", "{:.0f}"),
        "pipelined/s": ("ask_pipelined_per_s", "{:,.0f}"),
        "tell/s": ("tell_200B_per_s", "{:,.0f}"),
        "64 KiB MB/s": ("array_64KiB_MB_per_s", "{:,.0f}"),
        "8 MiB MB/s": ("array_8MiB_MB_per_s", "{:,.0f}"),
    }
    lines = ["".join([f"{'':20}", *(f"{title:>14}" for title in columns)])]
    for name, figures in results.items():
        cells = (form.format(figures[key]) for key, form in columns.values())
        lines.append("".join([f"{name:20}", *(f"{cell:>14}" for cell in cells)]))
    return "\n".join(lines)


def ratios(results: dict[str, dict[str, float]]) -> list[str]:
    """What is wanted of us, and what was measured in this run."""
    wanted = [
        ("ask_200B_p50_us", "zmq_sync", "<=", 1.6),
        ("ask_200B_p50_us", "xoscar", "<=", 0.6),
        ("ask_200B_p50_us", "ray", "<=", 0.1),
        ("ask_pipelined_per_s", "xoscar", ">=", 8.0),
        ("ask_pipelined_per_s", "ray", ">=", 50.0),
        ("tell_200B_per_s", "xoscar", ">=", 10.0),
        ("tell_200B_per_s", "ray", ">=", 40.0),
        ("array_64KiB_MB_per_s", "zmq_sync", ">=", 0.7),
        ("array_8MiB_MB_per_s", "zmq_sync", ">=", 0.9),
    ]
    lines = []
    for key, other, sign, limit in wanted:
        # xoscar's and Ray's calls are what one sends with there.
        theirs = "ask_pipelined_per_s" if key == "tell_200B_per_s" else key
        if other not in results:
            continue
        found = []
        for ours in ("headrace", "headrace_stream"):
            if ours in results:
                ratio = results[ours][key] / results[other][theirs]
                met = ratio <= limit if sign == "<=" else ratio >= limit
                found.append(f"{ours} {ratio:.2f}{'' if met else ' (missed)'}")
        against = other if theirs == key else f"{other}'s calls"
        lines.append(f"{key} / {against}: wanted {sign} {limit}; {', '.join(found)}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute instead of several")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--without", nargs="*", default=[], choices=list(CONTENDERS), help="leave these out")
    arguments = parser.parse_args()
    if arguments.json:
        arguments.json.touch()  # a place that cannot be written shows now, not after minutes
    names = [name for name in CONTENDERS if name not in arguments.without]
    with tempfile.TemporaryDirectory(prefix="messaging-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # whatever is killed in here leaves nothing
        try:
            document = measure_all(names, quick=arguments.quick)
        except KeyboardInterrupt:
            say("interrupted: nothing was written\n")
            return 130
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")
        print(f"written to {arguments.json}")
    return 0


def measure_all(names: list[str], *, quick: bool) -> dict[str, Any]:
    began_s = time.monotonic()
    results, skipped = contest(names, QUICK if quick else FULL)
    print("\n" + table(results))
    for name, why in skipped.items():
        print(f"{name} {why}")
    print("\n".join(["", *ratios(results)]))
    say("what belongs to Headrace alone")
    child = Child(alone_process, quick)
    try:
        alone: dict[str, Any] = child.pipe.recv()
    finally:
        child.kill()
    print("\n" + own.text(alone))
    by_key = {
        key: {name: figures[key] for name, figures in results.items()} for key in next(iter(results.values()), ())
    }
    return {**by_key, **alone, "skipped": skipped, "took_s": round(time.monotonic() - began_s, 1)}


if __name__ == "__main__":
    sys.exit(main())
