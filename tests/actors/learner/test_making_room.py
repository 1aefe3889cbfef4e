"""The learner asks engines to sleep: who does is counted, who does not or is silent holds no step up for long."""

from __future__ import annotations

import asyncio

import pytest

from headrace.actors.learner.making_room import SLEEP_TIMEOUT_S, EnginesAsleep
from headrace.actors.messages import EngineAsleep, SleepEngine
from headrace.transport import Actor, Runtime, handles, run_virtual


class Engine(Actor):
    def __init__(self, answer: str | float) -> None:
        self._answer = answer

    @handles(SleepEngine)
    async def sleep(self, message: SleepEngine) -> EngineAsleep:
        if isinstance(self._answer, float):
            await asyncio.sleep(self._answer)
            return EngineAsleep()
        if self._answer == "fails":
            raise RuntimeError("no")
        return EngineAsleep(self._answer)


@pytest.mark.parametrize(
    ("answers", "num_asleep", "seconds"),
    [
        ({}, 0, 0.0),
        ({"generator/0": 3.0, "generator/1": 5.0, "evaluator/0": 1.0}, 3, 6.0),
        ({"generator/0": "2 requests are in flight", "generator/1": 0.0}, 1, 0.0),
        ({"generator/0": "fails", "evaluator/0": 0.0}, 1, 0.0),
        ({"generator/0": 1e6, "evaluator/0": 0.0}, 1, SLEEP_TIMEOUT_S),
    ],
)
def test_who_sleeps(answers: dict[str, str | float], num_asleep: int, seconds: float) -> None:
    async def main() -> None:
        runtime = Runtime(encode_local=True)
        await runtime.start()
        for name, answer in answers.items():
            await runtime.add(Engine(answer), name)
        began_s = runtime.context.clock.time()
        assert await EnginesAsleep(runtime.context).begin() == num_asleep
        assert runtime.context.clock.time() - began_s == pytest.approx(seconds, abs=0.5)
        EnginesAsleep.end()
        await runtime.stop()

    run_virtual(main())
