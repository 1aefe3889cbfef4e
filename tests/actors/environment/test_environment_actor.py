"""The environment actor among scripted peers, in one process on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from headrace.actors.environment import EnvironmentActor, Observation, SingleTurn, StepOutcome
from headrace.actors.messages import (
    Accepted,
    CancelSessions,
    Completion,
    Generate,
    GradeSession,
    Metrics,
    RunSessions,
    SessionFailed,
    SessionsMoved,
    WhichSessions,
)
from headrace.transport import Actor, Refused, Runtime, handles, run_virtual

IM_END = 266


class Generator(Actor):
    """Says "hello" after `delay_s`; fails while `broken`."""

    def __init__(self, delay_s: float = 0.5) -> None:
        self.delay_s = delay_s
        self.requests: list[Generate] = []
        self.running = self.peak = 0

    @handles(Generate, concurrent=True)
    async def generate(self, message: Generate) -> Completion:
        self.requests.append(message)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.context.clock.sleep(self.delay_s)
        finally:
            self.running -= 1
        n = 2
        return Completion(np.array([259, IM_END], np.int32), np.full(n, -0.1, np.float32), np.ones(n, np.int32), "stop")


class Grader(Actor):
    def __init__(self, *, hang: bool = False) -> None:
        self.hang = hang
        self.got: list[GradeSession] = []

    @handles(GradeSession, concurrent=True)
    async def grade(self, message: GradeSession) -> Accepted:
        if self.hang:
            await self.context.clock.sleep(10_000)
        self.got.append(message)
        return Accepted()


class Dispatcher(Actor):
    def __init__(self) -> None:
        self.moved: list[SessionsMoved] = []
        self.failed: list[SessionFailed] = []
        self.deaf = False

    @handles(SessionsMoved)
    async def sessions_moved(self, message: SessionsMoved) -> Accepted:
        if self.deaf:
            raise Refused("not heard")
        self.moved.append(message)
        return Accepted()

    @handles(SessionFailed)
    async def session_failed(self, message: SessionFailed) -> Accepted:
        self.failed.append(message)
        return Accepted()


class Monitor(Actor):
    def __init__(self) -> None:
        self.got: list[Metrics] = []

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        self.got.append(message)


class House:
    """A runtime with one of each; `environment` are the actor's own options."""

    def __init__(self, model_folder, num_generators: int = 2, **environment) -> None:
        self.runtime = Runtime(encode_local=True)
        options = {"environment": SingleTurn, "model_path": str(model_folder), **environment}
        self.environment = EnvironmentActor(**options)
        self.generators = [Generator() for _ in range(num_generators)]
        self.graders = [Grader(), Grader()]
        self.dispatcher, self.monitor = Dispatcher(), Monitor()

    async def __aenter__(self) -> House:
        await self.runtime.start()
        await self.runtime.add(self.monitor, "monitor/0")
        await self.runtime.add(self.dispatcher, "dispatcher/0")
        for role, actors in (("generator", self.generators), ("grader", self.graders)):
            for index, actor in enumerate(actors):
                await self.runtime.add(actor, f"{role}/{index}")
        await self.runtime.add(self.environment, "environment/0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runtime.stop()

    async def run(self, specs) -> object:
        return await self.runtime.context.ask("environment/0", RunSessions(tuple(specs)), timeout_s=5)

    @property
    def moved(self) -> list[str]:
        return [session_id for move in self.dispatcher.moved for session_id, _ in move.sessions]

    @property
    def graded(self) -> list[str]:
        return [grade.trajectory.spec.session_id for grader in self.graders for grade in grader.got]


@pytest.fixture
def house(model_folder) -> Callable[..., House]:
    return lambda **options: House(model_folder, **options)


def test_sessions_run_in_slots_and_move_to_graders(house, make_spec):
    async def main():
        async with house(slots=4) as h:
            assert h.runtime.context.group("environment").metadata("environment/0") == {"slots": 4}
            assert isinstance(await h.run(make_spec(f"s{n}") for n in range(8)), Accepted)
            await asyncio.sleep(0.9)
            assert len(h.moved) == 4  # the second four wait for slots
            await asyncio.sleep(2)
            assert sorted(h.moved) == sorted(h.graded) == [f"s{n}" for n in range(8)]
            assert sum(generator.peak for generator in h.generators) <= 4
            assert len(h.dispatcher.moved) <= 4  # batched: at most one message a grader and a wave
            for move in h.dispatcher.moved:
                index = int(move.grader.removeprefix("grader/"))
                assert {session_id for session_id, _ in move.sessions} <= {
                    g.trajectory.spec.session_id for g in h.graders[index].got
                }
            await asyncio.sleep(2)
            values = h.monitor.got[-1].values
            assert (h.monitor.got[-1].stream, values["sessions"], values["tokens_out"]) == ("environment", 8.0, 16.0)

    run_virtual(main())


def test_one_that_leaves_takes_no_more_and_has_work_until_the_dispatcher_has_heard(house, model_folder, make_spec):
    async def main():
        async with house() as h:
            leaver = EnvironmentActor(environment=SingleTurn, model_path=str(model_folder))
            process = Runtime(h.runtime._network, directory=h.runtime.address)
            await process.start()
            await process.add(leaver, "environment/1")
            ask, h.dispatcher.deaf = h.runtime.context.ask, True
            await ask("environment/1", RunSessions((make_spec("s0"),)), timeout_s=5)
            h.runtime.directory.process_leaving(process.incarnation)
            with pytest.raises(Refused, match="environment/1 is leaving"):
                await ask("environment/1", RunSessions((make_spec("s1"),)), timeout_s=5)
            await asyncio.sleep(5)
            assert h.graded == ["s0"]
            assert leaver.has_work(), "the session is graded, and the dispatcher does not know it"
            assert not process.left.done()
            h.dispatcher.deaf = False
            await asyncio.sleep(5)
            assert h.moved == ["s0"]
            assert process.left.done()
            await process.stop()

    run_virtual(main())


def test_a_repeated_request_runs_nothing_twice(house, make_spec):
    async def main():
        async with house() as h:
            await h.run([make_spec("s0")])
            await h.run([make_spec("s0")])
            await asyncio.sleep(5)
            assert h.graded == ["s0"]

    run_virtual(main())


def test_a_newer_attempt_takes_the_older_ones_place(house, make_spec):
    async def main():
        async with house() as h:
            await h.run([make_spec("s0")])
            await asyncio.sleep(0.1)
            await h.run([replace(make_spec("s0"), attempt=1)])
            await asyncio.sleep(0.1)
            await h.run([make_spec("s0")])  # a late repetition of the first
            await asyncio.sleep(5)
            attempts = [grade.trajectory.spec.attempt for grader in h.graders for grade in grader.got]
            assert attempts == [1]
            assert h.moved == ["s0"]
            assert h.dispatcher.failed == []

    run_virtual(main())


def test_it_says_what_it_has(house, make_spec):
    """A restarted dispatcher asks: what runs or waits; not what a grader acknowledged, nor what was cancelled."""

    async def main():
        async with house(slots=2) as h:
            ask = h.runtime.context.ask

            async def held():
                answer = await ask("environment/0", WhichSessions(), timeout_s=5)
                assert (answer.incarnation, answer.slots) == (h.runtime.incarnation, 2)
                return set(answer.sessions)

            await h.run([make_spec("s0"), replace(make_spec("s1"), attempt=2), make_spec("s2")])
            assert await held() == {("s0", 0), ("s1", 2), ("s2", 0)}
            await h.runtime.context.tell("environment/0", CancelSessions((("s0", 0),)))
            assert await held() == {("s1", 2), ("s2", 0)}
            await asyncio.sleep(5)
            assert await held() == set()

    run_virtual(main())


def test_a_move_names_the_process_of_the_grader(house, make_spec):
    class Incarnate(Grader):
        @handles(GradeSession, concurrent=True)
        async def grade(self, message: GradeSession) -> Accepted:
            return Accepted("the first one")

    async def main():
        h = house()
        h.graders = [Incarnate()]
        async with h:
            await h.run([make_spec("s0")])
            await asyncio.sleep(5)
            assert h.dispatcher.moved == [SessionsMoved((("s0", 0),), "grader/0", "the first one")]

    run_virtual(main())


def test_moves_that_were_not_heard_are_said_again(house, make_spec):
    async def main():
        async with house(slots=2) as h:
            h.dispatcher.deaf = True
            await h.run([make_spec("s0"), replace(make_spec("s1"), attempt=2)])
            await asyncio.sleep(20)
            assert sorted(h.graded) == ["s0", "s1"]
            h.dispatcher.deaf = False
            await asyncio.sleep(2)
            said = [session for move in h.dispatcher.moved for session in move.sessions]
            assert sorted(said) == [("s0", 0), ("s1", 2)]

    run_virtual(main())


def test_a_cancellation_said_again_spares_the_attempt_after_it(house, make_spec):
    async def main():
        async with house(slots=2) as h:
            ask = h.runtime.context.ask
            await h.run([make_spec("s0")])
            cancel = CancelSessions((("s0", 0),))
            assert await ask("environment/0", cancel, timeout_s=5) == Accepted()
            await h.run([replace(make_spec("s0"), attempt=1)])
            await ask("environment/0", cancel, timeout_s=5)
            held = await ask("environment/0", WhichSessions(), timeout_s=5)
            assert held.sessions == (("s0", 1),)
            await asyncio.sleep(5)
            assert h.graded == ["s0"]

    run_virtual(main())


def test_more_than_it_can_know_is_refused(house, make_spec):
    async def main():
        async with house(slots=1) as h:
            with pytest.raises(Refused, match="1 slots"):
                await h.run(make_spec(f"s{n}") for n in range(3))

    run_virtual(main())


def test_nothing_more_is_sent_about_a_cancelled_session(house, make_spec):
    async def main():
        async with house(slots=1) as h:
            await h.run([make_spec("s0"), make_spec("s1")])
            await asyncio.sleep(0.1)
            await h.runtime.context.tell("environment/0", CancelSessions((("s0", 0), ("nobody", 0))))
            await asyncio.sleep(5)
            assert h.graded == h.moved == ["s1"]
            assert h.dispatcher.failed == []

    run_virtual(main())


def test_a_failed_session_is_reported_and_the_actor_goes_on(house, make_spec):
    async def main():
        async with house(context_tokens=100) as h:
            await h.run([make_spec("long", prompt="x" * 200), make_spec("s1")])
            await asyncio.sleep(5)
            assert h.graded == ["s1"]
            assert [(f.session_id, f.attempt, f.reason) for f in h.dispatcher.failed] == [("long", 0, "failed")]
            assert "context_tokens=100" in h.dispatcher.failed[0].detail
            assert h.monitor.got[-1].values["errors/prompt_too_long"] == 1.0

    run_virtual(main())


def test_a_plug_in_that_raises_fails_its_session_only(house, make_spec):
    class BadParser:
        def parse(self, text, tools):
            raise TypeError("what is this")

    async def main():
        async with house(tool_calls=BadParser()) as h:
            await h.run([make_spec("s0")])
            await asyncio.sleep(5)
            assert "what is this" in h.dispatcher.failed[0].detail
            assert not h.runtime.failed.done()

    run_virtual(main())


def test_the_code_of_an_author_is_named_where_it_runs(house, make_spec):
    """messaging fault 26: what holds the event loop is told with this name."""
    steps = []

    class Patient(SingleTurn):
        async def reset(self, task):
            steps.append(h.environment.context.activity.step)
            return await super().reset(task)

    async def main():
        async with h:
            await h.run([make_spec("s0")])
            await asyncio.sleep(5)
            assert h.graded == ["s0"]

    h = house(environment=Patient)
    run_virtual(main())
    assert [step.rpartition(".")[0].rpartition(".")[2] for step in steps] == ["Patient"]
    assert steps[0].endswith("Patient.reset")


def test_hanging_graders_lose_the_session_by_a_deadline(house, make_spec):
    """cases G109: the grading phase has a deadline too."""

    async def main():
        async with house(grade_timeout_s=10.0) as h:
            for grader in h.graders:
                grader.hang = True
            await h.run([make_spec("s0")])
            await asyncio.sleep(40)
            assert [(f.session_id, f.reason) for f in h.dispatcher.failed] == [("s0", "lost")]

    run_virtual(main())


def test_a_grader_that_hangs_does_not_lose_a_session_where_another_lives(house, make_spec):
    async def main():
        async with house(grade_timeout_s=10.0) as h:
            h.graders[0].hang = True
            await h.run(make_spec(f"s{n}") for n in range(4))
            await asyncio.sleep(60)
            assert sorted(h.moved) == [f"s{n}" for n in range(4)]
            assert h.dispatcher.failed == []

    run_virtual(main())


def test_a_generation_moves_when_its_generator_dies(house, make_spec):
    async def main():
        async with house() as h:
            await h.run(make_spec(f"s{n}") for n in range(8))
            await asyncio.sleep(0.1)
            assert all(generator.running for generator in h.generators)  # sticky, and spread over both
            h.runtime._fail(h.runtime._cells["generator/0"], RuntimeError("killed"))
            await asyncio.sleep(5)
            assert sorted(h.moved) == [f"s{n}" for n in range(8)]

    run_virtual(main())


def test_turns_of_a_session_stick_to_one_generator_and_have_their_own_seeds(house, make_spec):
    class Twice(SingleTurn):
        turns = 0

        async def step(self, turn):
            self.turns += 1
            return StepOutcome() if self.turns == 2 else StepOutcome(Observation(()).messages or (turn,), done=False)

    async def main():
        async with house(environment=Twice, max_turns=3) as h:
            await h.run(make_spec(f"s{n}", member=n) for n in range(8))
            await asyncio.sleep(5)
            by_generator = [{r.session_id for r in generator.requests} for generator in h.generators]
            assert not by_generator[0] & by_generator[1]
            seeds = [r.sampling.seed for generator in h.generators for r in generator.requests]
            assert len(set(seeds)) == len(seeds) == 16

    run_virtual(main())


def test_stopping_closes_what_runs(house, make_spec):
    closed = []

    class Closing(SingleTurn):
        async def close(self):
            closed.append(self)

    async def main():
        async with house(environment=Closing) as h:
            await h.run(make_spec(f"s{n}") for n in range(3))
            await asyncio.sleep(0.1)
        assert len(closed) == 3

    run_virtual(main())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"slots": 0}, "slots must be >= 1, got 0"),
        ({"max_turns": 0}, "max_turns"),
        ({"step_timeout_s": 0}, "step_timeout_s must be > 0"),
        ({"grade_timeout_s": -1}, "grade_timeout_s"),
        ({"environment": "SingleTurn"}, "_partial_"),
        ({"environment": dict}, r"dict lacks reset, step, close"),
        ({"environment": partial(OrderedDict, a=1)}, r"OrderedDict lacks reset, step, close"),
        ({"renderer": "qwen"}, "auto, chat, plain"),
        ({"tool_calls": "json"}, "hermes_json"),
        ({"context_tokens": 0}, "context_tokens"),
    ],
)
def test_wrong_options_fail_before_anything_starts(model_folder, option: dict[str, object], message: str):
    options = {"environment": SingleTurn, "model_path": str(model_folder), **option}
    with pytest.raises(ValueError, match=message):
        EnvironmentActor(**options)  # type: ignore[arg-type]


def test_seeds_do_not_depend_on_which_generator_serves(house, make_spec):
    """cases B53: verl-project/verl#6857: 4 generator actors x 8 members: all seeds are distinct, and the same ones
    again in a rerun with the same base, however many generators share the sessions."""

    def seeds(base: int, num_generators: int) -> dict[str, int | None]:
        async def main() -> dict[str, int | None]:
            async with house(num_generators=num_generators, slots=32, seed=base) as h:
                await h.run(
                    replace(make_spec(f"s{group}-{member}", member=member), group_id=f"g{group}")
                    for group in range(4)
                    for member in range(8)
                )
                await asyncio.sleep(5)
                assert all(generator.requests for generator in h.generators)
                return {r.session_id: r.sampling.seed for g in h.generators for r in g.requests}

        return run_virtual(main())

    first = seeds(7, 4)
    assert len(first) == len(set(first.values())) == 32
    assert None not in first.values()
    assert seeds(7, 4) == seeds(7, 1) == first
    assert not set(first.values()) & set(seeds(8, 4).values())
