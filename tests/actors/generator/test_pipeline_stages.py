"""Pipeline parallelism: each worker of each stage is a rank, loads its stage only, and no token meets two versions."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from pipeline import PipelineEngine

from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.messages import JoinGroup
from headrace.transport.weights import SenderSettings
from headrace.transport.weights.collective.sender import CollectiveSender

LONG_S = 120.0
STAGES = [["embed", "layers.0"], ["layers.1", "head"]]


def weights(version: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((3,), float(version)) for names in STAGES for name in names}


@pytest.mark.parametrize("num_tensor", [1, 2])
def test_four_names_on_two_stages_through_ten_versions(num_tensor: int) -> None:
    sender = CollectiveSender(SenderSettings(run_id="stages", bucket_bytes=64, communicator="memory"))
    engine = PipelineEngine(STAGES, num_tensor)

    async def main() -> None:
        decoding = asyncio.ensure_future(engine.decode())
        world_size = 1 + await engine.ranks.count()
        assert world_size == 1 + 2 * num_tensor
        opened = sender.open_group("g", world_size=world_size, timeout_s=LONG_S, keep=())
        await engine.ranks.join(JoinGroup("g", *opened, 1, world_size, LONG_S, ()))
        for version in range(1, 11):
            staged = sender.stage(weights(version), version=version, step=version)
            assert staged is not None
            manifest = staged.seal()
            before = len(engine.tokens)
            sending = asyncio.to_thread(sender.send, "g", version, timeout_s=LONG_S)
            await asyncio.gather(engine.ranks.receive(manifest, Broadcast("g", LONG_S)), sending)
            assert len(engine.tokens) > before, "it decodes while it receives"
            await engine.commit(manifest)
            sender.release(version)
            for stage, names in enumerate(STAGES):
                for worker in engine.stages[stage]:
                    assert {name: float(tensor[0]) for name, tensor in worker.tensors.items()} == dict.fromkeys(
                        names, float(version)
                    ), "its own stage's names, all of them, and no other"
        engine.close()
        await decoding

    asyncio.run(main())
    sender.close()
    assert len(engine.tokens) > 20
    mixed = [token for token in engine.tokens if len(set(token)) > 1]
    assert not mixed, "the pause waits until the batch queue is empty"
    values = [token[0] for token in engine.tokens]
    assert values == sorted(values)


@pytest.mark.vllm
def test_vllms_own_pause_waits_until_its_batch_queue_is_empty() -> None:
    """Ours is `pause_scheduler_async(mode="keep")`. With pipeline parallelism steps are under way when it is called; it
    may answer only once they are over."""
    core_module = pytest.importorskip("vllm.v1.engine.core")

    class Scheduler:
        def has_requests(self) -> bool:
            return False

        def set_pause_state(self, state: Any) -> None:
            self.state = state

    core = object.__new__(core_module.EngineCoreProc)
    core.scheduler, core.engines_running, core._idle_state_callbacks = Scheduler(), False, []
    core._finish_pause = lambda clear_cache: None
    core.batch_queue = deque([("a step under way",)])
    paused = core.pause_scheduler(mode="keep", clear_cache=False)
    assert isinstance(paused, Future)
    assert not paused.done()
    core.batch_queue.clear()
    [idle] = core._idle_state_callbacks
    idle(core)
    assert paused.done()
    assert core.pause_scheduler(mode="keep", clear_cache=False) is None, "nothing under way: at once"
