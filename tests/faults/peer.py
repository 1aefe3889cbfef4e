"""Messages and an actor that this folder's tests share with real child processes.

As a program it is such a child: `python peer.py <directory address> <folder> <incarnation>` hosts worker/0, whose
effects are lines of <folder>/effects.<incarnation>.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from headrace.transport import Actor, MailboxBound, Runtime, ZmqNetwork, handles, message


@message("faults.work")
@dataclass(frozen=True, slots=True)
class Work:
    """One effect; the reply is its number."""

    number: int
    takes_s: float = 0.0


@message("faults.bulk")
@dataclass(frozen=True, slots=True, eq=False)
class Bulk:
    number: int
    values: np.ndarray


@message("faults.nap")
@dataclass(frozen=True, slots=True)
class Nap:
    seconds: float


@message("faults.call")
@dataclass(frozen=True, slots=True)
class Call:
    """Ask `peer` for a nap, and say nothing before it answers."""

    peer: str
    seconds: float


@message("faults.block")
@dataclass(frozen=True, slots=True)
class Block:
    """One effect, then hold the event loop."""

    number: int
    seconds: float


class Worker(Actor):
    mailbox = MailboxBound(capacity=256)

    def __init__(self, *, effects: str = "") -> None:
        self._effects = effects
        self.numbers: list[int] = []
        self.sums: list[float] = []
        self.napping = 0
        self.cancelled = 0

    @handles(Work)
    async def work(self, message: Work) -> Work:
        if message.takes_s:
            await self.context.clock.sleep(message.takes_s)
        self._effect(message.number)
        return message

    @handles(Bulk)
    async def bulk(self, message: Bulk) -> Work:
        self._effect(message.number)
        self.sums.append(float(message.values.sum()))
        return Work(message.number)

    @handles(Nap, concurrent=True)
    async def nap(self, message: Nap) -> None:
        self.napping += 1
        try:
            await self.context.clock.sleep(message.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.napping -= 1

    @handles(Call, concurrent=True)
    async def call(self, message: Call) -> None:
        await self.context.ask(message.peer, Nap(message.seconds), timeout_s=message.seconds)

    @handles(Block)
    async def block(self, message: Block) -> None:
        self._effect(message.number)
        time.sleep(message.seconds)  # noqa: ASYNC251

    def _effect(self, number: int) -> None:
        self.numbers.append(number)
        if self._effects:
            with open(self._effects, "a") as file:
                file.write(f"{number}\n")


async def serve(address: str, folder: str, incarnation: str) -> None:
    runtime = Runtime(ZmqNetwork(ipc_folder=folder), directory=address, incarnation=incarnation)
    await runtime.start()
    await runtime.add(Worker(effects=os.path.join(folder, f"effects.{incarnation}")), "worker/0")
    await runtime.failed


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:4]))
