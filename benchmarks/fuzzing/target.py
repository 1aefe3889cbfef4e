"""A live runtime on the in-memory network and virtual time, which a hostile peer talks to; and what must hold.

Each round is one incarnation of the peer: a thousand messages straight into `Links.receive`, then a probe, then the
peer is declared dead and nothing of it may be left.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.mutator import Envelope, Mutator
from headrace.transport import Actor, LoopbackNetwork, Runtime, TransportError, handles, message
from headrace.transport.blocks import SendBlocks
from headrace.transport.codec import pack
from headrace.transport.frames import MAGIC, Kind
from headrace.transport.network import Lane
from headrace.transport.system import ActorRecord

ROUND_MESSAGES = 1000
SHARED_BYTES = 1 << 20
TARGET, PEER = "target/0", "peer/0"


@message("fuzz.text")
@dataclass(frozen=True, slots=True)
class Text:
    text: str
    number: int = 0
    real: float = 0.0
    anything: object = None
    maybe: dict[str, tuple[int, ...]] | None = None


@message("fuzz.numbers")
@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    values: np.ndarray
    more: np.ndarray | None = None


@message("fuzz.count")
@dataclass(frozen=True, slots=True)
class Count:
    upto: int


class Target(Actor):
    def __init__(self) -> None:
        self.handled: Counter[str] = Counter()

    @handles(Text)
    async def text(self, message: Text) -> Text:
        self.handled["text"] += 1
        return message

    @handles(Numbers, concurrent=4)
    async def numbers(self, message: Numbers) -> Numbers:
        self.handled["numbers"] += 1
        message.values.sum()
        return message

    @handles(Count, stream=True)
    async def count(self, message: Count) -> AsyncIterator[Text]:
        self.handled["count"] += 1
        for number in range(min(message.upto, 200)):
            yield Text("", number)


class WentWrong(AssertionError):
    """Something that must hold did not; the text names it and the message number."""


def sample_envelopes() -> list[tuple[Envelope, list[bytes]]]:
    text = ["fuzz.text", 1, {"text": "hi", "number": 3, "real": 0.5, "anything": [1, {"a": None}], "maybe": {"k": [1]}}]
    small = ["fuzz.numbers", 1, {"values": ["<f4", [2, 2], bytes(16)], "more": None}]
    large = ["fuzz.numbers", 1, {"values": ["<i8", [4096], 0], "more": ["<u1", [40_000], 1]}]
    arrays = [bytes(32768), bytes(40_000)]
    count = ["fuzz.count", 1, {"upto": 100}]
    query = ["headrace.activity_query", 1, {}]
    payloads = [(text, []), (small, []), (large, arrays), (count, []), (query, []), (None, [])]
    samples: list[tuple[Envelope, list[bytes]]] = []
    for index, (payload, frames) in enumerate(payloads):
        for name in (TARGET, "target/9", "directory/0"):
            samples.append(([Kind.ASK, index, name, True, 60, payload], frames))
            samples.append(([Kind.ASK, index + 100, name, False, 60, payload], frames))
            samples.append(([Kind.TELL, name, True, 60, payload], frames))
        samples += [([kind, index + 1, 60, payload], frames) for kind in (Kind.REPLY, Kind.ITEM)]
    for call_id in range(1, 20):
        samples.append(([Kind.ERROR, call_id, ["PeerLost", "text", "a", "b", "c"]], []))
        samples += [([Kind.END, call_id], []), ([Kind.CANCEL, call_id], []), ([Kind.ITEMS, call_id, 3], [])]
    samples += [([Kind.GRANT, PEER, 0, 1, 10], []), ([Kind.GAP, 0], []), ([Kind.HELLO, "a|b|c"], [])]
    samples += [([Kind.OFFER, 1, 1, 0, SHARED_BYTES], []), ([Kind.MAPPED, 1, True], [])]
    samples += [([Kind.SHARED, [0, 0, 32_768, 40_000], [Kind.TELL, TARGET, True, 60, large]], [])]
    return [([*map(_plain, envelope)], frames) for envelope, frames in samples]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Kind) else value


class Fuzzing:
    """Run inside a virtual-time loop: `await Fuzzing(seed).run(num)`. Raises WentWrong."""

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed, sample_envelopes())
        self._network = LoopbackNetwork(shared_memory_bytes=SHARED_BYTES)
        self._host = Runtime(self._network)
        self._target = Target()
        self._escaped: list[str] = []
        self.accepted = 0
        self.num = self.num_offers = 0
        self.asks: Counter[str] = Counter()
        self.resident_bytes: list[int] = []

    async def run(self, num: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._escaped.append(str(context)))
        await self._host.start()
        await self._host.add(self._target, TARGET)
        round_num = 0
        while self.num < num:
            round_num += 1
            await self._round(f"peer{round_num}", min(ROUND_MESSAGES, num - self.num))
            self.resident_bytes.append(_resident_bytes())
        result = self.report()
        await self._host.stop()
        return result

    def report(self) -> dict[str, Any]:
        counters = self._host._links.counters
        fields = {name: getattr(counters, name) for name in counters.__slots__}
        warm = self.resident_bytes[len(self.resident_bytes) // 10]
        growth = self.resident_bytes[-1] / warm - 1
        return {
            "frames": self.num, "offers": self.num_offers, "accepted": self.accepted, "counters": fields,
            "handled": dict(self._target.handled),
            "own_asks": dict(self.asks), "resident_growth": round(growth, 4),
        }  # fmt: skip

    async def _round(self, peer: str, num: int) -> None:
        host = self._host
        port = await self._network.open(peer, lambda lane, frames: None)
        record = ActorRecord(PEER, peer, str(port.address), {}, 64, 1 << 20)
        host.directory.commit(host._names.state.register(record))
        asks = []
        memory = SendBlocks(peer, SHARED_BYTES)
        for index in range(num):
            if index % 100 == 0:
                self._offer(peer, str(port.address), memory)
                asks.append(asyncio.ensure_future(self._ask_peer()))
                await asyncio.sleep(0)
            self._one(peer, str(port.address))
            if index % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(2.0)
        await asyncio.gather(*asks)
        probe = await host.context.ask(TARGET, Text("probe"), timeout_s=5.0)
        if probe != Text("probe"):
            raise WentWrong(f"after message {self.num} the probe was answered {probe}")
        for known in [*host._links._links, peer]:
            host.directory.process_down(known, "the round is over")
        await asyncio.sleep(2.0)
        await port.close(0.0)
        memory.close()
        self._nothing_is_left()

    def _offer(self, peer: str, address: str, memory: SendBlocks) -> None:
        """Memory in which the places of sound and damaged envelopes may lie."""
        self.num_offers += 1
        where = memory.locator
        offer = [int(Kind.OFFER), 1, where.process_id, where.descriptor, where.capacity_bytes]
        self._host._links.receive(
            Lane.BULK, [pack([*self._header(peer, Lane.BULK), [int(Kind.HELLO), address], offer])]
        )

    def _header(self, peer: str, lane: Lane) -> list[Any]:
        link = self._host._links._links.get(peer)
        sequence = min(link.expected[lane], 2**64 - 1) if link is not None else 0
        return [MAGIC, peer, self._host.incarnation, 0, sequence]

    def _one(self, peer: str, address: str) -> None:
        links = self._host._links
        lane = Lane.BULK if self.num % 3 == 0 else Lane.CONTROL
        frames = self._mutator.message(self._header(peer, lane), [int(Kind.HELLO), address])
        before, seen = self._refused(), self._accepted()
        self.num += 1
        try:
            links.receive(lane, frames)
        except BaseException as error:
            raise WentWrong(f"message {self.num} escaped: {error!r}; {frames[0][:200].hex()}") from error
        accepted = self._accepted() > seen
        self.accepted += accepted
        if not accepted and self._refused() != before + 1:
            raise WentWrong(f"message {self.num} was neither delivered nor counted once: {frames[0][:200].hex()}")

    def _accepted(self) -> int:
        return sum(sum(link.expected) for link in self._host._links._links.values())

    def _refused(self) -> int:
        counters = self._host._links.counters
        return (
            counters.malformed
            + counters.oversize
            + counters.other_incarnation
            + counters.dead_sender
            + counters.repeated
        )

    async def _ask_peer(self) -> None:
        """What the peer's replies, errors and grants are about."""
        try:
            await self._host.context.ask(PEER, Text("are you sound?"), timeout_s=1.0)
            self.asks["answered"] += 1
        except TransportError as error:
            self.asks[type(error).__name__] += 1

    def _nothing_is_left(self) -> None:
        host = self._host
        cell = host._cells[TARGET]
        left = {
            "links": len(host._links._links), "calls": len(host._calls), "mailbox": len(cell.mailbox),
            "escaped": len(self._escaped), "failed": int(host.failed.done()),
            "tasks": max(0, len(asyncio.all_tasks()) - 20),
        }  # fmt: skip
        if any(left.values()):
            raise WentWrong(f"after message {self.num} there is left: {left}; {self._escaped[:1]}")


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
