"""The custom-actor example: its three classes, and that its configuration composes and is valid."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from headrace.actors.messages import Metrics
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory
from headrace.transport import Actor, Runtime, handles, run_virtual


def trajectory(answer: str, gold: str | None) -> Trajectory:
    task = Task("t", "test", (ChatMessage("user", "^2,1="),), answer=gold)
    spec = SessionSpec("s", "g", 0, "train", task, Sampling())
    empty = np.zeros(0, np.int32)
    messages = (*task.prompt, ChatMessage("assistant", answer))
    return Trajectory(spec, empty, empty.astype(np.float32), empty.astype(bool), empty, (), messages, "done")


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        ("[1,2]", "[1,2]", 1.0),
        ("[1,2", "[1,2]", 0.16),
        ("[1,2]]", "[1,2]", 0.2),
        ("no", "[1,2]", 0.0),
        ("x", None, None),
    ],
)
def test_the_grader_pays_for_a_right_beginning(answer: str, gold: str | None, reward: float | None):
    from headrace_example.close_answer import CloseAnswer

    grade = CloseAnswer(partial=0.2).grade(trajectory(answer, gold))
    assert grade.reward == (None if reward is None else pytest.approx(reward))
    with pytest.raises(ValueError, match="partial"):
        CloseAnswer(partial=1.0)


def test_the_environment_asks_once_more():
    from headrace_example.second_chance import SecondChance

    async def main() -> list[bool]:
        environment = SecondChance(pattern=r"\[[0-9,]*\]", retry="=")
        observation = await environment.reset(trajectory("", None).spec.task)
        assert observation.messages[0].content == "^2,1="
        outcomes = [await environment.step(ChatMessage("assistant", "1,2")) for _ in range(2)]
        assert outcomes[0].messages == (ChatMessage("user", "="),)
        at_once = await SecondChance(pattern=r"\[[0-9,]*\]", retry="=").step(ChatMessage("assistant", "[7]"))
        return [outcome.done for outcome in (*outcomes, at_once)]

    assert asyncio.run(main()) == [False, True, True]


def test_the_new_actor_names_the_busiest():
    from headrace_example.bottleneck_watch import Bottleneck, BottleneckQuery, BottleneckWatch

    class Monitor(Actor):
        def __init__(self) -> None:
            self.got: list[Metrics] = []

        @handles(Metrics)
        async def metrics(self, message: Metrics) -> None:
            self.got.append(message)

    class Worker(Actor):
        def __init__(self, share: float) -> None:
            self.share = share

        async def on_start(self, context):
            context.spawn(self._work(), "work")

        async def _work(self):
            while True:
                with self.context.activity.working("work"):
                    await self.context.clock.sleep(self.share)
                await self.context.clock.sleep(1 - self.share)

    async def main() -> None:
        runtime = Runtime(encode_local=True)
        await runtime.start()
        monitor = Monitor()
        await runtime.add(monitor, "monitor/0")
        await runtime.add(Worker(0.75), "learner/0")
        await runtime.add(Worker(0.25), "generator/0")
        await runtime.add(BottleneckWatch(roles=["learner", "generator"], every_s=10), "bottleneck_watch/0")
        assert await runtime.context.ask("bottleneck_watch", BottleneckQuery(), timeout_s=1) == Bottleneck("", 0.0)
        await asyncio.sleep(25)
        worst = await runtime.context.ask("bottleneck_watch", BottleneckQuery(), timeout_s=1)
        assert worst.name == "learner/0"
        assert worst.busy == pytest.approx(0.75, abs=0.05)
        assert monitor.got[-1].values["busy/generator/0"] == pytest.approx(0.25, abs=0.05)
        await runtime.stop()

    run_virtual(main())


def test_the_configuration_composes_and_names_classes_that_exist(example_folder: Path):
    from headrace.launch.compose import compose_config
    from headrace.launch.schema import check_targets

    composed = compose_config(["experiment=custom_actor"], config_dirs=[example_folder / "configs"])
    config = composed.resolve(dir="runs/x", id="x")
    assert config["topology"]["nodes"]["local"]["actors"]["bottleneck_watch"]["count"] == 1
    for role in ("grader", "environment", "bottleneck_watch"):
        assert check_targets(config[role], role) == []
