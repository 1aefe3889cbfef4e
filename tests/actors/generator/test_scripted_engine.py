"""The scripted engine, in virtual time: what other tests rely on."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.messages import Completion, Generate
from headrace.actors.session import Sampling
from headrace.transport import run_virtual
from headrace.transport.weights import Manifest, WeightsMismatch


def request(max_tokens: int = 64) -> Generate:
    return Generate("s", np.asarray([1], dtype=np.int32), Sampling(max_tokens=max_tokens))


def manifest(version: int) -> Manifest:
    return Manifest(version, version, "shm", "", 0, (), (), {})


def test_turns_in_order_and_the_last_one_for_ever() -> None:
    async def main() -> list[Completion]:
        engine = ScriptedEngine(script=[ScriptedTurn((1, 2)), ScriptedTurn((3,), (-0.25,), "length")])
        await engine.start()
        return [await engine.generate(request()) for _ in range(3)]

    first, second, third = run_virtual(main())
    assert first.token_ids.tolist() == [1, 2]
    assert second.logprobs.tolist() == [-0.25]
    assert second.finish_reason == "length"
    assert third.token_ids.tolist() == [3]


def test_max_tokens_cuts_a_turn() -> None:
    async def main() -> Completion:
        engine = ScriptedEngine(script=[ScriptedTurn(tuple(range(10)))])
        await engine.start()
        return await engine.generate(request(4))

    completion = run_virtual(main())
    assert (completion.token_ids.tolist(), completion.finish_reason) == ([0, 1, 2, 3], "length")


def test_tokens_carry_the_version_of_their_time() -> None:
    async def main() -> Completion:
        engine = ScriptedEngine(script=[ScriptedTurn(tuple(range(10)), token_s=1.0)], pause_s=5.0)
        await engine.start()
        running = asyncio.ensure_future(engine.generate(request()))
        await asyncio.sleep(3.5)
        await engine.stage_weights(manifest(1))
        timings = await engine.commit_weights(manifest(1))
        assert (timings.pause_s, timings.requests_running) == (5.0, 1)
        return await running

    assert run_virtual(main()).versions.tolist() == [0] * 3 + [1] * 7


def test_failures_and_death() -> None:
    async def main() -> None:
        engine = ScriptedEngine(script=[ScriptedTurn(failure=ValueError("scripted")), ScriptedTurn(first_token_s=100)])
        await engine.start()
        with pytest.raises(ValueError, match="scripted"):
            await engine.generate(request())
        engine.fail_next_stage = WeightsMismatch("bad")
        with pytest.raises(WeightsMismatch, match="bad"):
            await engine.stage_weights(manifest(1))
        with pytest.raises(WeightsMismatch, match="not staged"):
            await engine.commit_weights(manifest(1))
        pending = [asyncio.ensure_future(engine.generate(request())) for _ in range(3)]
        await asyncio.sleep(1)
        engine.die("out of memory")
        ended = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(end) for end in ended] == [EngineDied] * 3
        assert engine.num_running == 0

    run_virtual(main())
