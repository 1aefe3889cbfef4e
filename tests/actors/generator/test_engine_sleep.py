"""An engine that gives its memory back while the learner trains: it sleeps beside nothing, is awake for everything."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dropping_engine import DroppingEngine

from headrace.actors.generator.actor import Generator
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.messages import CommitWeights, Completion, EngineAsleep, Generate, SleepEngine, StageWeights
from headrace.actors.session import Sampling
from headrace.transport import DeadlineExceeded, RemoteError, Runtime, run_virtual
from headrace.transport.weights import Manifest, SenderSettings
from headrace.transport.weights.layout import model_tensors
from headrace.transport.weights.shm import ShmWriter


class NappingEngine(ScriptedEngine):
    """Takes a second to fall asleep and two to wake; refuses to do anything asleep."""

    sleeps = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asleep = False
        self.num_wakes = 0
        self.broken = False
        self.wake_s = 2.0

    async def sleep(self) -> None:
        assert self.num_running == 0
        await asyncio.sleep(1)
        self.asleep = True

    async def wake(self) -> None:
        await asyncio.sleep(self.wake_s)
        if self.broken:
            from headrace.actors.generator.engine import EngineDied

            raise EngineDied("no memory to wake in")
        self.asleep = False
        self.num_wakes += 1

    async def generate(self, request: Generate) -> Completion:
        assert not self.asleep
        return await super().generate(request)

    async def commit_weights(self, manifest: Manifest) -> Any:
        assert not self.asleep
        return await super().commit_weights(manifest)


def request(prompt: list[int] | None = None, max_tokens: int = 64) -> Generate:
    return Generate("s", np.asarray(prompt or [1], dtype=np.int32), Sampling(max_tokens=max_tokens, temperature=0.0))


def manifest(version: int) -> Manifest:
    return Manifest(version, version, "shm", "", 0, (), (), {})


async def started(engine: Any) -> tuple[Runtime, Any]:
    runtime = Runtime(encode_local=True)
    await runtime.start()
    await runtime.add(Generator(engine=engine, wait_for_weights=False, metrics_period_s=0), "generator/0")

    async def ask(message: object) -> Any:
        return await runtime.context.ask("generator/0", message, timeout_s=240)

    return runtime, ask


SLOW_TURN = [ScriptedTurn(tuple(range(8)), token_s=1.0)]


def test_it_sleeps_beside_nothing_and_a_commit_or_a_request_wakes_it_once() -> None:
    async def main() -> None:
        engine = NappingEngine(script=SLOW_TURN)
        runtime, ask = await started(engine)
        running = asyncio.ensure_future(ask(request()))
        await asyncio.sleep(2)
        assert await ask(SleepEngine()) == EngineAsleep("1 requests are in flight")
        assert (await running).versions.tolist() == [0] * 8
        assert await ask(SleepEngine()) == EngineAsleep("")
        assert await ask(SleepEngine()) == EngineAsleep("")
        await ask(StageWeights(manifest(1)))
        assert engine.asleep, "bytes come near without it"
        await ask(CommitWeights(1))
        assert not engine.asleep
        assert await ask(SleepEngine()) == EngineAsleep("")
        together = await asyncio.gather(*(ask(request()) for _ in range(4)))
        assert {tuple(completion.versions.tolist()) for completion in together} == {(1,) * 8}
        assert engine.num_wakes == 2
        await runtime.stop()

    run_virtual(main())


def test_a_request_that_comes_as_it_falls_asleep_waits_and_is_served() -> None:
    async def main() -> None:
        engine = NappingEngine(script=SLOW_TURN)
        runtime, ask = await started(engine)
        falling = asyncio.ensure_future(ask(SleepEngine()))
        await asyncio.sleep(0.5)
        served = asyncio.ensure_future(ask(request()))
        assert await falling == EngineAsleep("")
        assert (await served).versions.tolist() == [0] * 8
        await runtime.stop()

    run_virtual(main())


@pytest.mark.parametrize("sleeps", [None, False])
def test_an_engine_that_cannot_or_was_not_asked_to_says_so(sleeps: bool | None) -> None:
    async def main() -> None:
        engine = ScriptedEngine() if sleeps is None else NappingEngine()
        if sleeps is not None:
            engine.sleeps = sleeps  # type: ignore[attr-defined]
        runtime, ask = await started(engine)
        assert (await ask(SleepEngine())).why_not == "its engine has no sleep_while_training"
        await runtime.stop()

    run_virtual(main())


def test_one_that_does_not_wake_ends_its_actor() -> None:
    async def main() -> None:
        engine = NappingEngine()
        runtime, ask = await started(engine)
        await ask(SleepEngine())
        engine.broken = True
        with pytest.raises(RemoteError, match="no memory to wake in"):
            await ask(request())
        with pytest.raises(Exception, match="no memory to wake in"):
            await runtime.failed
        await runtime.stop()

    run_virtual(main())


def test_a_request_that_gives_up_does_not_end_the_waking() -> None:
    async def main() -> None:
        engine = NappingEngine(script=SLOW_TURN)
        runtime, ask = await started(engine)
        await ask(SleepEngine())
        with pytest.raises(DeadlineExceeded):
            await runtime.context.ask("generator/0", request(), timeout_s=0.5)
        assert (await ask(request())).versions.tolist() == [0] * 8
        assert engine.num_wakes == 1
        await runtime.stop()

    run_virtual(main())


def test_one_that_wakes_for_ever_is_lost_at_a_deadline() -> None:
    async def main() -> None:
        engine = NappingEngine()
        runtime, ask = await started(engine)
        await ask(SleepEngine())
        engine.wake_s = 1e9
        with pytest.raises(RemoteError, match="did not wake within 50 s"):
            await ask(request())
        with pytest.raises(Exception, match="did not wake within 50 s"):
            await runtime.failed
        await runtime.stop()

    run_virtual(main())


def test_memory_that_is_really_gone_is_back_for_the_next_version(
    model_path: str, models: Any, prompts: Any, greedy: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        engine = DroppingEngine(model_path=model_path, max_batch=8, folder=str(tmp_path))
        runtime, ask = await started(engine)
        full = engine.resident_bytes
        for version, name in ((1, "second"), (2, "first")):
            assert await ask(SleepEngine()) == EngineAsleep("")
            assert engine.resident_bytes == 0 < full
            staged = writer.stage(model_tensors(models[name]), version=version, step=version)
            assert staged is not None
            await ask(StageWeights(await asyncio.to_thread(staged.seal)))
            assert engine.resident_bytes == 0
            await ask(CommitWeights(version))
            assert engine.resident_bytes == full
            completion = await ask(request(prompts[0], 16))
            assert completion.token_ids.tolist() == greedy(models[name], prompts[0], 16)
            writer.release(version)
        await ask(SleepEngine())
        completion = await ask(request(prompts[1], 16))
        assert completion.token_ids.tolist() == greedy(models["first"], prompts[1], 16)
        assert engine.log == ["sleep", "wake", "commit 1", "sleep", "wake", "commit 2", "sleep", "wake"]
        await runtime.stop()

    writer = ShmWriter(SenderSettings(run_id="sleeping", bucket_bytes=4096, num_buffers=2))
    try:
        asyncio.run(main())
    finally:
        writer.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_in_turns(tmp_path: Path) -> None:
    """mode=sync: at each step the engine's memory is the learner's, and every version is served after it."""
    command = [
        sys.executable, "-m", "headrace.launch.cli", "launch", "experiment=smoke", "mode=sync", "training.max_steps=3",
        "generator.engine._target_=dropping_engine.DroppingEngine", f"+generator.engine.folder={tmp_path}",
        "+generator.engine.sleep_while_training=true", f"run.root={tmp_path / 'runs'}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = (tmp_path / "runs" / "latest" / "metrics.jsonl").read_text().splitlines()
    steps = [line["values"] for line in map(json.loads, lines) if line["stream"] == "train"]
    assert [values["engines_asleep"] for values in steps] == [1.0] * 3
    assert all(values["seconds/make_room"] > 0 for values in steps)
