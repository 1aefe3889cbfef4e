"""Versions cross to another host once, whole or as what changed, through everything that may happen on the way."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.messages import FetchBucket, WeightsBucket
from headrace.actors.relay import fetch
from headrace.actors.relay.actor import Relay
from headrace.transport import ActivityQuery
from headrace.transport.network import Lane
from headrace.transport.weights import Adapter, Manifest, open_weights
from headrace.transport.weights.checksum import is_whole

NUM_BUCKETS = 8
FULL_BYTES = NUM_BUCKETS * 65_536


class Gate:
    """Lets the first `num` buckets pass, and the rest once it is open."""

    def __init__(self, num: int) -> None:
        self._num = num
        self.open = asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, number: int, ask: FetchBucket, reply: WeightsBucket) -> WeightsBucket:
        if number > self._num:
            self.reached.set()
            await self.open.wait()
        return reply


def test_a_host_receives_once_whatever_the_number_of_its_engines(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        await world.start_relay()
        engines = [await world.start_generator(i) for i in range(3)]
        await world.publish(1)
        for engine in engines:
            await world.serves(engine, 1)
        assert world.source.num_bytes(1) == FULL_BYTES
        assert len({location for engine in engines for location in engine.locations}) == 1
        late = await world.start_generator(3)
        await world.serves(late, 1)
        assert len(world.source.asked) == NUM_BUCKETS, "who joins late reads what is here"
        await world.publish(2)
        for engine in [*engines, late]:
            await world.serves(engine, 2)
        assert world.source.kinds(2) == {"delta": NUM_BUCKETS}
        assert world.source.num_bytes(2) < FULL_BYTES / 4

    play(body)


def test_engines_on_the_learners_node_read_its_memory(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        engine = await world.start_generator(node="training")
        manifest = await world.publish(1)
        await world.serves(engine, 1)
        assert engine.locations == [manifest.location.removeprefix("training:")]
        assert not world.source.asked

    play(body)


def test_without_delta_every_version_comes_whole_and_the_source_keeps_no_copy(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        await world.start_relay(delta=False)
        engine = await world.start_generator()
        for version in (1, 2):
            await world.publish(version)
            await world.serves(engine, version)
            assert world.source.kinds(version) == {"full": NUM_BUCKETS}
        assert not world.source._source._copies

    play(body)


def test_every_so_many_versions_one_comes_whole(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        await world.start_relay(full_every=3)
        engine = await world.start_generator()
        for version in range(1, 8):
            await world.publish(version)
            await world.serves(engine, version)
        whole = [version for version in range(1, 8) if world.source.kinds(version) == {"full": NUM_BUCKETS}]
        assert whole == [1, 4, 7]
        assert len(world.source._source._copies) == 2, "bounded"

    play(body)


def test_a_bucket_that_is_damaged_on_the_way_is_asked_for_again(play: Any) -> None:
    """Whole ones and deltas; also a delta that is no delta at all."""

    async def damage(number: int, ask: FetchBucket, reply: WeightsBucket) -> WeightsBucket:
        if number not in (3, NUM_BUCKETS + 3, NUM_BUCKETS + 4):
            return reply
        data = reply.data.copy()
        data[len(data) // 2 if number != NUM_BUCKETS + 4 else 0] ^= 0x40
        return WeightsBucket(reply.kind, data)

    async def body(world: Any) -> None:
        await world.start(damage)
        await world.start_relay()
        engine = await world.start_generator()
        for version, damaged in ((1, 1), (2, 2)):
            await world.publish(version)
            await world.serves(engine, version)
            assert world.source.kinds(version).total() == NUM_BUCKETS + damaged
            assert world.source.kinds(version)["full"] == (NUM_BUCKETS + 1 if version == 1 else damaged)
        await world.until(lambda: [r["buckets_damaged"] for r in world.listener.relayed] == [1.0, 2.0])

    play(body)


def test_what_is_always_damaged_is_never_served(play: Any) -> None:
    damaged = True

    async def damage(number: int, ask: FetchBucket, reply: WeightsBucket) -> WeightsBucket:
        if not damaged or ask.version != 2 or ask.index != 5:
            return reply
        return WeightsBucket("full", np.zeros(65_536, dtype=np.uint8))

    async def body(world: Any) -> None:
        nonlocal damaged
        await world.start(damage)
        await world.start_relay()
        engine = await world.start_generator()
        await world.publish(1)
        await world.serves(engine, 1)
        await world.publish(2)
        await world.until(lambda: world.listener.evictions == 1)
        assert engine.version == 1
        damaged = False
        await world.publish(3)
        await world.serves(engine, 3)
        assert 2 not in engine.loaded

    play(body)


def test_a_connection_that_breaks_in_the_middle_costs_only_what_was_under_way(play: Any) -> None:
    async def body(world: Any) -> None:
        async def cut(number: int, ask: FetchBucket, reply: WeightsBucket) -> WeightsBucket:
            if number == 3:
                pair = world.runtimes["source"].incarnation, world.runtimes["relay0"].incarnation
                world.network.lose(*pair, Lane.BULK, 1)
            return reply

        await world.start(cut)
        await world.start_relay()
        engine = await world.start_generator()
        await world.publish(1)
        await world.serves(engine, 1)
        assert world.network.num_lost == 1
        assert NUM_BUCKETS < len(world.source.asked) <= NUM_BUCKETS + 5, "four are under way at once"

    play(body)


def test_a_source_that_is_killed_and_restarted_is_asked_for_the_rest(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = []
    monkeypatch.setattr(fetch, "is_whole", lambda *args: arrived.append(is_whole(*args)) or arrived[-1])

    async def body(world: Any) -> None:
        gate = Gate(5)
        await world.start(gate)
        await world.start_relay()
        engine = await world.start_generator()
        first = world.source
        await world.publish(1)
        await gate.reached.wait()
        await world.until(lambda: len(arrived) == 5)
        world.kill("source")
        second = await world.start_source()
        await world.serves(engine, 1)
        asked = [ask.index for ask in second.asked]
        assert sorted({ask.index for ask, _ in first.sent} | set(asked)) == list(range(NUM_BUCKETS))
        assert len(set(asked)) == NUM_BUCKETS - 5, "what has come is not asked for again"
        await world.publish(2)
        await world.serves(engine, 2)
        kinds = world.source.kinds(2)
        assert kinds["full"] == 5, "the source has no copy of what the first one sent"
        assert kinds["delta"] == 3

    play(body)


def test_a_relay_that_is_killed_during_a_fetch_begins_anew_and_holds_no_base(play: Any) -> None:
    async def body(world: Any) -> None:
        engine = await world.start_and_serve()
        world.source.answer = gate = Gate(len(world.source.asked) + 3)
        await world.publish(2)
        await gate.reached.wait()
        world.kill("relay0")
        gate.open.set()
        assert engine.version == 1
        await world.start_relay()
        await world.serves(engine, 2)
        assert [ask.base for ask in world.source.asked[-NUM_BUCKETS:]] == [None] * NUM_BUCKETS
        await world.publish(3)
        await world.serves(engine, 3)
        assert world.source.kinds(3) == {"delta": NUM_BUCKETS}

    play(body)


def test_a_base_that_is_gone_at_the_source_means_whole_buckets(play: Any) -> None:
    async def body(world: Any) -> None:
        engine = await world.start_and_serve()
        world.source._source._copies.clear()
        await world.publish(2)
        await world.serves(engine, 2)
        assert world.source.kinds(2) == {"full": NUM_BUCKETS}
        assert {ask.base for ask in world.source.asked if ask.version == 2} == {1}

    play(body)


def test_a_base_that_is_not_the_sources_is_noticed_and_whole_buckets_come(play: Any) -> None:
    """Flip bytes of what the relay holds, behind its back: no engine serves what would come of it."""

    async def body(world: Any) -> None:
        await world.start()
        relay: Relay = await world.start_relay()
        engine = await world.start_generator()
        await world.publish(1)
        await world.serves(engine, 1)
        relay._copies[1].buffer[100:110] ^= 0xFF
        await world.publish(2)
        await world.serves(engine, 2)
        assert world.source.kinds(2) == {"delta": NUM_BUCKETS, "full": 1}

    play(body)


def odd_tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(300, 200, generator=generator)
    return {
        "matrix": matrix,
        "tied": matrix,
        "strided": torch.randn(64, 50, generator=generator)[:, ::3].t(),
        "half": torch.randn(77_777, generator=generator).half(),
        "tiny floats": torch.randn(999, generator=generator).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(float(seed)),
        "empty": torch.zeros(0, 4),
        "buffer": torch.randint(0, 9, (123,), generator=generator),
        "nan": torch.tensor([float("nan"), float("inf"), -0.0], dtype=torch.bfloat16),
    }


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("delta", [False, True])
def test_tensors_of_every_kind_cross_as_they_are(delta: bool, play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        relay: Relay = await world.start_relay(delta=delta)
        engine = await world.start_generator()
        for version in (1, 2):
            tensors = odd_tensors(version)
            await world.announce(world.sender.stage(tensors, version=version, step=version).seal())
            await world.has_loaded(engine, version)
            near = open_weights(relay._copies[version].manifest)
            near.verify()
            found = dict(near.tensors(include_tied=True))
            assert {name: bits(tensor) for name, tensor in found.items()} == {
                name: bits(tensor) for name, tensor in tensors.items()
            }

    play(body)


def test_an_adapter_brings_the_weights_below_it_once(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        await world.start_relay()
        engine = await world.start_generator()
        below = replace(await world.publish(1), adapter=None)
        await world.serves(engine, 1)
        seen: list[Manifest] = []
        stage = engine.stage_weights

        async def note(manifest: Manifest) -> Any:
            seen.append(manifest)
            return await stage(manifest)

        engine.stage_weights = note
        for version in (2, 3):
            sealed = world.sender.stage({"a": torch.full((40,), float(version))}, version=version, step=version).seal()
            await world.announce(replace(sealed, adapter=Adapter(4, 8.0, ("m",), below)))
            await world.has_loaded(engine, version)
        locations = {manifest.adapter.base.location for manifest in seen}
        assert len(seen) == 2
        assert len(locations) == 1
        near = open_weights(seen[-1].adapter.base)
        near.verify()
        assert bits(dict(near.tensors())["w"]) == world.bytes[1].tobytes()
        assert sum(ask.below for ask in world.source.asked) == NUM_BUCKETS

    play(body)


def test_on_a_slow_link_engines_serve_on_and_skip_what_was_superseded(play: Any) -> None:
    async def body(world: Any) -> None:
        engine = await world.start_and_serve()
        world.source.answer = gate = Gate(len(world.source.asked) + 2)
        await world.publish(2)
        await gate.reached.wait()
        await world.publish(3)
        await world.publish(4)
        assert engine.version == 1
        assert engine.num_running == 0
        gate.open.set()
        await world.serves(engine, 4)
        assert engine.commits == [1, 2, 4]
        assert 3 not in {ask.version for ask in world.source.asked}

    play(body)


def test_a_version_that_was_released_under_a_fetch_is_given_up_at_once(play: Any) -> None:
    async def body(world: Any) -> None:
        gate = Gate(2)
        await world.start(gate, stage_timeout_s=0.3)
        await world.start_relay()
        engine = await world.start_generator()
        await world.publish(1)
        await gate.reached.wait()
        await world.until(lambda: world.listener.evictions == 1)
        world.source.answer = None
        await world.publish(2)
        gate.open.set()
        await world.serves(engine, 2)
        assert 1 not in engine.loaded

    play(body)


def test_buffers_are_freed_when_the_last_reader_has_loaded_or_died(play: Any) -> None:
    async def body(world: Any) -> None:
        await world.start()
        relay: Relay = await world.start_relay()
        fast = await world.start_generator(0)
        await world.start_generator(1, stage_s=600.0)
        await world.publish(1)
        await world.serves(fast, 1)
        await world.publish(2)
        await world.serves(fast, 2)
        assert set(relay._copies) == {1, 2}, "the slow one still reads version 1"
        await world.publish(3)
        await world.serves(fast, 3)
        assert world.source.kinds(3) == {"full": NUM_BUCKETS}, "the base made room: a slow engine delays only itself"
        assert set(relay._copies) == {1, 3}
        world.kill("generator1")
        await world.until(lambda: set(relay._copies) == {3})
        await world.publish(4)
        await world.serves(fast, 4)
        assert world.source.kinds(4) == {"delta": NUM_BUCKETS}
        await world.until(lambda: set(relay._copies) == {4})
        mine = [name for name in world.segments() if "-relay-0-" in name]
        assert len(mine) == 2, "two buffers, whatever the number of versions"

    play(body)


def test_a_buffer_is_not_given_on_while_a_thread_still_writes_into_it(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_it, go_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> bool:
        at_it.set()
        assert go_on.wait(20)
        return is_whole(*args)

    monkeypatch.setattr(fetch, "is_whole", slow)

    async def body(world: Any) -> None:
        await world.start()
        relay = await world.start_relay()
        await world.start_generator(0)
        await world.publish(1)
        await world.until(at_it.is_set)
        world.kill("generator0")  # nobody waits for version 1 any more
        await world.publish(2)
        engine = await world.start_generator(1)
        await world.until(lambda: relay._holdings.needed(2))
        for _ in range(20):
            await world.runtimes["relay0"].context.ask("parameter_server/0", ActivityQuery(), timeout_s=5)
        assert {ask.version for ask in world.source.asked} == {1}
        go_on.set()
        await world.serves(engine, 2)

    play(body)


def test_a_node_without_a_relay_says_so(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.actors.generator.near_weights._RELAY_START_S", 0.2)

    async def body(world: Any) -> None:
        await world.start()
        await world.start_generator()
        manifest: Manifest = await world.publish(1)
        await world.until(lambda: world.listener.evictions == 1)
        assert manifest.location.startswith("training:")

    play(body)


def test_nothing_is_left_in_shared_memory(play: Any) -> None:
    worlds: list[Any] = []

    async def body(world: Any) -> None:
        await world.start_and_serve()
        worlds.append(world)
        assert len(world.segments()) == 5  # of the learner three, of the relay two

    play(body)
    assert worlds[0].segments() == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"full_every": 0}, "relay.full_every must be >= 1"),
        ({"num_buffers": 1}, "relay.num_buffers must be an integer from 2 to 64"),
        ({"num_buffers": 10**6}, "relay.num_buffers must be an integer from 2 to 64"),
        ({"buckets_in_flight": 0}, "in_flight must be 1 to 64"),
        ({"buckets_in_flight": 10**6}, "in_flight must be 1 to 64"),
        ({"buffer_timeout_s": 0}, "relay.buffer_timeout_s must be > 0"),
        ({"patience_s": 0}, "patience_s must be > 0"),
    ],
)
def test_settings_are_checked_at_construction(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Relay(run_id="x", **options)
