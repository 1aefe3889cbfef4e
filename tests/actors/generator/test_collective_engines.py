"""Engines whose workers receive a broadcast: torch in this process, and real vLLM, each of whose workers is a rank."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.messages import JoinGroup
from headrace.transport.weights import Manifest, SenderSettings, WeightsMismatch
from headrace.transport.weights.collective import memory
from headrace.transport.weights.collective.communicator import GroupBroken
from headrace.transport.weights.collective.sender import CollectiveSender
from headrace.transport.weights.layout import model_tensors

SLOW = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]
LONG_S = 120.0


class Learner:
    """Rank 0, as the parameter server has it act."""

    def __init__(self, bench: Any, sender: CollectiveSender) -> None:
        self.bench, self.sender = bench, sender
        self.version = bench.version
        self.number = 0
        self.unique_id = b""

    def stage(self, model: Any, **changes: Any) -> Manifest:
        for version in range(self.version + 1):
            self.sender.release(version)
        self.version += 1
        tensors = {**model_tensors(model), **changes}
        staged = self.sender.stage(tensors, version=self.version, step=self.version)
        assert staged is not None
        return staged.seal()

    async def group(self, *, timeout_s: float = LONG_S, extra_ranks: int = 0) -> str:
        self.number += 1
        group, engine = f"{id(self)}-{self.number}", self.bench.engine
        world_size = 1 + await engine.ranks.count() + extra_ranks
        opened = await asyncio.to_thread(
            self.sender.open_group, group, world_size=world_size, timeout_s=timeout_s, keep=()
        )
        _, self.unique_id = opened
        message = JoinGroup(group, *opened, 1, world_size, timeout_s, ())
        await both(engine.ranks.join(message), asyncio.to_thread(self.sender.joined, group, timeout_s))
        return group

    async def until_joining(self, num_ranks: int) -> None:
        """That many of the engine's ranks have begun to join the newest group, which has not come together."""
        while sum(_have_joined(self.unique_id)[1 : num_ranks + 1]) < num_ranks:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.001)

    async def send(self, group: str, version: int, timeout_s: float = LONG_S) -> None:
        await asyncio.to_thread(self.sender.send, group, version, timeout_s=timeout_s)


def _have_joined(unique_id: bytes) -> list[int]:
    """Of each rank whether it has come, read off the memory of a group that is coming together."""
    path = unique_id.decode().rpartition(":")[0]
    if not path or os.stat(path).st_size <= memory._HEADER_BYTES:
        return [0]
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), memory._HEADER_BYTES, access=mmap.ACCESS_READ) as header,
        memoryview(header).cast("q") as words,
    ):
        return words[memory._RANKS + memory._JOINED :: memory._RANK_STRIDE].tolist()


async def both(*awaitables: Awaitable[Any]) -> list[Any]:
    """Ends with the first error, once all are over."""
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.fixture(scope="module", params=["torch", pytest.param("vllm", marks=SLOW)])
def make_engine(request: pytest.FixtureRequest, model_path: str) -> Callable[[], Any]:
    """vLLM at tensor parallel 2: two ranks."""
    if request.param == "torch":
        from headrace.actors.generator.torch_engine import TorchEngine

        return lambda: TorchEngine(model_path=model_path, max_batch=24)
    pytest.importorskip("vllm")
    from headrace.actors.generator.vllm_engine import VllmEngine

    return lambda: VllmEngine(
        model_path=model_path, dtype="float32", max_num_seqs=24, tensor_parallel_size=2, cpu_threads_bind="0|1",
        prefix_cache="salt", num_threads=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(make_engine: Any, make_bench: Any) -> Any:
    return make_bench(make_engine())


@pytest.fixture
def learner(shared: Any) -> Iterator[Learner]:
    sender = CollectiveSender(SenderSettings(run_id="collective", bucket_bytes=16384, communicator="memory"))
    learner = Learner(shared, sender)
    yield learner
    shared.version = learner.version
    sender.close()


def check_serves(bench: Any, model: Any, prompts: Any, greedy: Any) -> None:
    for prompt in prompts[:4]:
        completion = bench.generate(prompt, 16, temperature=0.0)
        assert completion.token_ids.tolist() == greedy(model, prompt, 16)
        assert set(completion.versions.tolist()) == {bench.engine.version}


def test_a_version_arrives_while_the_engine_decodes(
    shared: Any, learner: Learner, models: Any, prompts: Any, greedy: Any
) -> None:
    """A request in flight goes on through the receipt and the load; its later tokens are the new version's."""

    async def update() -> list[int]:
        group = await learner.group()
        for name in ("second", "first"):  # in the same group
            manifest = learner.stage(models[name])
            request = asyncio.ensure_future(shared.engine.generate(shared.request(prompts[0], 400, seed=1)))
            await asyncio.sleep(0.05)
            received, _ = await both(
                shared.engine.receive_weights(manifest, Broadcast(group, LONG_S)), learner.send(group, manifest.version)
            )
            assert received.send_s > 0
            assert shared.engine.version < manifest.version, "it is near, and not served"
            timings = await shared.engine.commit_weights(manifest)
            assert timings.load_s <= timings.pause_s
            assert shared.engine.version == manifest.version
        return (await request).versions.tolist()

    versions = shared.run(update())
    assert versions == sorted(versions)
    check_serves(shared, models["first"], prompts, greedy)


def test_a_model_that_does_not_fit_is_refused_before_a_byte_is_taken(
    shared: Any, learner: Learner, models: Any, prompts: Any, greedy: Any
) -> None:
    import torch

    served = shared.engine.version
    manifest = learner.stage(models["second"], **{"lm_head.weight": torch.zeros(3, 3)})
    with pytest.raises(WeightsMismatch, match=r"lm_head\.weight: shape"):
        shared.run(shared.engine.receive_weights(manifest, Broadcast("none", LONG_S)))
    assert shared.engine.version == served
    check_serves(shared, models["first"], prompts, greedy)


def test_a_changed_byte_is_found_by_the_workers(
    shared: Any, learner: Learner, models: Any, prompts: Any, greedy: Any
) -> None:
    """One bucket is not what its checksum says: the version is refused, the one in service serves on."""
    manifest = learner.stage(models["second"])
    learner.sender._held[manifest.version][1][20000] ^= 0x10

    async def update() -> None:
        group = await learner.group()
        await both(
            shared.engine.receive_weights(manifest, Broadcast(group, LONG_S)), learner.send(group, manifest.version)
        )

    with pytest.raises(WeightsMismatch, match=r"bad checksums in 1 of \d+: bucket 1 "):
        shared.run(update())
    with pytest.raises(WeightsMismatch, match="is not staged"):
        shared.run(shared.engine.commit_weights(manifest))
    check_serves(shared, models["first"], prompts, greedy)


def test_a_sender_that_never_sends_is_a_deadline(shared: Any, learner: Learner, models: Any) -> None:
    manifest = learner.stage(models["second"])

    async def update() -> None:
        group = await learner.group()
        await shared.engine.receive_weights(manifest, Broadcast(group, 0.5))

    began_s = time.monotonic()
    with pytest.raises(GroupBroken, match="not done at the deadline"):
        shared.run(update())
    assert time.monotonic() - began_s < LONG_S / 2


def test_an_abort_ends_a_join_and_a_receipt_and_says_how_far_they_came(
    shared: Any, learner: Learner, models: Any, prompts: Any, greedy: Any
) -> None:
    manifest = learner.stage(models["second"])

    async def abort_a_join() -> None:
        num_ranks = await shared.engine.ranks.count()
        learner.unique_id = b""
        joining = asyncio.ensure_future(learner.group(extra_ranks=1))
        await learner.until_joining(num_ranks)
        group = f"{id(learner)}-{learner.number}"
        assert await shared.engine.ranks.abort(group) == 1
        learner.sender.abort(group)
        with pytest.raises(GroupBroken):
            await joining

    async def abort_a_receipt() -> None:
        group = await learner.group()
        receiving = asyncio.ensure_future(shared.engine.receive_weights(manifest, Broadcast(group, LONG_S)))
        await asyncio.sleep(0.3)
        assert await shared.engine.ranks.abort(group) == 2
        with pytest.raises(GroupBroken):
            await receiving
        assert await shared.engine.ranks.abort("another") == 0

    shared.run(abort_a_join())
    shared.run(abort_a_receipt())
    check_serves(shared, models["first"], prompts, greedy)


def test_without_a_staging_buffer_a_version_is_loaded_as_it_arrives(
    make_engine: Any, make_bench: Any, models: Any, prompts: Any, greedy: Any
) -> None:
    """weights.staging=false. And what a failure in the middle costs: the engine."""
    bench = make_bench(make_engine())
    sender = CollectiveSender(
        SenderSettings(run_id="in-place", num_buffers=1, bucket_bytes=16384, communicator="memory")
    )
    learner = Learner(bench, sender)

    async def update(model: Any, *, spoil: bool) -> None:
        manifest = learner.stage(model)
        assert manifest.location == "in_place"
        if spoil:
            sender._held[manifest.version][1][50000] ^= 0x10
        group = await learner.group()
        loading = bench.engine.load_arriving(manifest, Broadcast(group, LONG_S))
        loaded, sent = await asyncio.gather(
            loading, learner.send(group, manifest.version, 10.0), return_exceptions=True
        )
        if isinstance(loaded, BaseException):
            raise loaded
        assert sent is None

    bench.run(update(models["second"], spoil=False))
    check_serves(bench, models["second"], prompts, greedy)
    with pytest.raises(EngineDied):
        bench.run(update(models["first"], spoil=True))
    with pytest.raises(EngineDied):
        bench.generate(prompts[0], 4)
    sender.close()
