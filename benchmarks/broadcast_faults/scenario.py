"""One run: three members follow a learner, a fault strikes while a version is on its way, and all is in order again.

Checked throughout: what an engine holds is the version that it claims, whole; versions never decrease in a life of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from broadcast_faults.cast import HUB, Arm, Hub, Look, Member, PublishNext, Seen, StubLearner
from broadcast_faults.faults import PHASES
from broadcast_faults.processes import Processes
from headrace.actors.messages import Accepted
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.transport import PeerLost, Runtime, TransportError, ZmqNetwork

GATHER_S, JOIN_S, STAGE_S, COMMIT_S = 1.0, 2.0, 2.0, 2.0
SLOW_S = 1.5 * (STAGE_S + GATHER_S)
STOPPED_S = GATHER_S + JOIN_S + GATHER_S + STAGE_S + GATHER_S
LIMIT_S = 2 * (GATHER_S + JOIN_S + GATHER_S + STAGE_S + GATHER_S + GATHER_S) + COMMIT_S + 5.0
"""Two attempts with every deadline missed, a commit, and what a busy machine of two cores adds."""
MEMBERS = ("generator/0", "generator/1", "generator/2")

CELLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("member", "absent", ("gather", "join")),
    ("member", "dies", PHASES),
    ("member", "stops", PHASES),
    ("member", "slow", PHASES),
    ("member", "refuses", ("gather", "join", "send", "commit")),
    ("member", "other_order", ("send",)),
    ("member", "flips", ("verify",)),
    ("learner", "dies", ("gather", "join", "send")),
    ("learner", "stops", ("gather", "join", "send")),
    ("learner", "slow", ("join", "send")),
    ("learner", "killed_meanwhile", PHASES),
    ("parameter_server", "killed_meanwhile", PHASES),
)
"""Who, what, in which phases. "killed_meanwhile": by SIGKILL while a member stands in that phase."""


class Hang(RuntimeError):
    """Not in order within the limit. Says what was waited for."""


class Wrong(RuntimeError):
    """An engine holds what it must not."""


@dataclass
class Result:
    """others_s: from the publication until the healthy members serve version 2 or newer; whole_s: until everybody
    serves the newest."""

    who: str
    fault: str
    phase: str
    seed: int
    outcome: str = ""
    others_s: float = 0.0
    whole_s: float = 0.0


@dataclass
class World:
    hub: Hub
    runtime: Runtime
    processes: Processes
    seen: dict[str, int] = field(default_factory=dict)

    async def ask(self, name: str, message: object, timeout_s: float = 20.0) -> Any:
        return await self.runtime.context.ask(name, message, timeout_s=timeout_s)

    async def look(self, name: str) -> int | None:
        """What the member serves; None where it does not answer now."""
        try:
            seen: Seen = await self.ask(name, Look(), timeout_s=0.5)
        except TransportError:
            return None
        if not seen.least == seen.most == seen.version:
            raise Wrong(f"{name} claims version {seen.version} and holds [{seen.least}, {seen.most}]")
        if seen.version < self.seen.get(name, 0):
            raise Wrong(f"{name} went back from version {self.seen[name]} to {seen.version}")
        self.seen[name] = seen.version
        return seen.version

    async def until_served(self, names: tuple[str, ...], version: int, what: str, limit_s: float = LIMIT_S) -> None:
        until_s = time.monotonic() + limit_s
        while True:
            served = [await self.look(name) for name in names]
            if all(one is not None and one >= version for one in served):
                return
            if time.monotonic() > until_s:
                raise Hang(f"{what}: {dict(zip(names, served, strict=True))} {limit_s:.0f} s later")
            await asyncio.sleep(0.02)


async def play(who: str, fault: str, phase: str, seed: int) -> Result:
    with tempfile.TemporaryDirectory(prefix="headrace-") as sockets:
        return await _play_among(Result(who, fault, phase, seed), sockets)


async def _play_among(result: Result, sockets: str) -> Result:
    runtime = Runtime(ZmqNetwork(ipc_folder=sockets))
    await runtime.start()
    hub = Hub()
    await runtime.add(hub, HUB)
    world = World(hub, runtime, Processes(runtime, sockets))
    try:
        await _play(world, result, random.Random(result.seed))
    except (Hang, Wrong) as error:
        result.outcome = f"{type(error).__name__.upper()}: {error}"
    finally:
        await world.processes.close()
        await runtime.stop()
    return result


async def _play(world: World, result: Result, chance: random.Random) -> None:
    processes = world.processes
    await processes.start(
        "parameter_server/0",
        ParameterServer,
        stage_timeout_s=STAGE_S,
        commit_timeout_s=COMMIT_S,
        gather_timeout_s=GATHER_S,
        join_timeout_s=JOIN_S,
        linger_s=1.0,
    )
    await asyncio.gather(
        processes.start("learner/0", StubLearner, first_version=1), *(processes.start(m, Member) for m in MEMBERS)
    )
    fresh_group = result.phase in ("join", "gather") or chance.random() < 0.3
    if fresh_group:  # the fault strikes the very first group
        first = 1
    else:
        await world.ask("learner/0", PublishNext())
        await world.until_served(MEMBERS, 1, "version 1 before any fault")
        first = 2
    culprit = chance.choice(MEMBERS) if result.who == "member" else ""
    healthy = tuple(name for name in MEMBERS if name != culprit)
    stricken = culprit or {"learner": "learner/0", "parameter_server": "parameter_server/0"}[result.who]
    teller = chance.choice(MEMBERS) if result.fault == "killed_meanwhile" else stricken
    kind = "tells" if result.fault == "killed_meanwhile" else result.fault
    assert await world.ask(teller, Arm(kind, result.phase, SLOW_S)) == Accepted()
    began_s = time.monotonic()
    publishing = asyncio.ensure_future(_publish(world))
    mending = asyncio.ensure_future(_mend(world, result, stricken, first))
    await world.until_served(healthy, first, "the healthy members")
    result.others_s = time.monotonic() - began_s
    result.outcome = await asyncio.wait_for(mending, 2 * LIMIT_S)
    await asyncio.wait_for(publishing, LIMIT_S)
    if culprit and not processes.restarts:
        served = await world.look(culprit)
        if served is not None and served < first:
            result.outcome = f"{result.outcome}it serves version {served} on, and rejoins"
        await world.ask("learner/0", PublishNext())
        first += 1
    await world.until_served(MEMBERS, first, "everybody in the end")
    result.whole_s = time.monotonic() - began_s
    await world.ask("learner/0", PublishNext())
    newest = max(world.seen.values()) + 1
    await world.until_served(MEMBERS, newest, "the version after")


async def _publish(world: World) -> None:
    with contextlib.suppress(PeerLost):  # its successor publishes by itself
        await world.ask("learner/0", PublishNext(), timeout_s=90)


async def _mend(world: World, result: Result, stricken: str, first: int) -> str:
    """What a supervisor, or an operator, does. The beginning of the outcome in words."""
    processes = world.processes
    if result.fault == "killed_meanwhile":
        await asyncio.wait_for(world.hub.reached.get(), LIMIT_S)
        processes.signal(stricken, signal.SIGKILL)
    if result.fault in ("dies", "killed_meanwhile"):
        until_s = time.monotonic() + LIMIT_S
        while processes.lives(stricken):
            if time.monotonic() > until_s:
                raise Hang(f"{stricken} was never struck")
            await asyncio.sleep(0.01)
        options = {"first_version": first + 1} if stricken == "learner/0" else {}
        await asyncio.sleep(0.1)
        world.seen.pop(stricken, None)
        await processes.restart(stricken, **options)
        return "restarted" if result.who == "member" else "goes on with its successor"
    if result.fault == "stops":
        await asyncio.sleep(STOPPED_S)
        processes.signal(stricken, signal.SIGCONT)
        return "left behind; " if result.who == "member" else "waited for, then published anew"
    if result.fault == "slow":
        await asyncio.sleep(SLOW_S)
    return "left behind; " if result.who == "member" else "tried again"
