"""The topology of a run, small: real dispatcher, environments, graders, generators and parameter server; a scripted
engine; a learner without a model that speaks through the real learner's own link, publisher and version log.

`Plan` is what a seed chooses: sizes, bounds, latencies and faults. `Triangle` runs one plan under one schedule and
checks after every message, and at the end, what must hold always.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from processes import LAUNCHER, Processes
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.dispatcher.evaluation import EvaluationSettings
from headrace.actors.environment import EnvironmentActor
from headrace.actors.environment.environment import Observation, StepOutcome
from headrace.actors.generator.actor import Generator
from headrace.actors.generator.scripted_engine import ScriptedEngine, ScriptedTurn
from headrace.actors.grader.actor import Grader
from headrace.actors.grader.grading import Grade
from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.learner.publisher import Publisher
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    Generate,
    LearnerResumed,
    Metrics,
    NextBatch,
    RunFinished,
    TrainingFinished,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.session import ChatMessage, Task, Trajectory
from headrace.transport import Actor, Context, LoopbackNetwork, MailboxBound, PeerDown, PeerUp, handles
from headrace.transport.network import Lane
from headrace.transport.schedule import PROCESS, Schedule
from headrace.transport.weights import Manifest

GIVE_UP_AFTER_S = 3600.0
"""of virtual time: a run that is not over by then never will be"""
MOST_MESSAGES = 100_000
"""what any of these runs needs a hundred times over"""

KILLABLE = ("environment", "grader", "generator", "parameter_server", "dispatcher", "learner")


@dataclass(frozen=True)
class Plan:
    """`kills`: (seconds after the start, actor). `breaks`: (seconds, sender's role, receiver's role, messages lost)."""

    counts: dict[str, int]
    group_size: int
    batch_sessions: int
    max_lag: int
    steps: int
    slots: int
    checkpoint_every: int
    capacities: dict[str, int]
    evaluate: bool
    over_age: str
    step_s: float
    token_s: float
    trouble: float
    kills: tuple[tuple[float, str], ...] = ()
    breaks: tuple[tuple[float, str, str, int], ...] = ()

    @classmethod
    def draw(cls, seed: int, *, kill: tuple[str, ...] = (), breaks: bool = False) -> Plan:
        """`kill`: roles whose processes may be killed; `breaks`: connections may lose messages."""
        rng = random.Random(f"plan {seed}")
        counts = {role: rng.choice((1, 2, 2, 3)) for role in ("environment", "grader", "generator")}
        small = {
            role: rng.choice((2, 5, 17))
            for role in ("dispatcher", "environment", "grader", "generator", "learner", "parameter_server")
            if rng.random() < 0.3
        }
        plan = cls(
            counts=counts,
            group_size=rng.choice((2, 4)),
            batch_sessions=rng.choice((4, 8)),
            max_lag=rng.choice((0, 1, 1, 2)),
            steps=3,
            slots=rng.choice((1, 3, 8)),
            checkpoint_every=rng.choice((1, 2, 0)),
            capacities=small,
            evaluate=rng.random() < 0.15,
            over_age=rng.choice(("train", "mask", "drop", "cancel")),
            step_s=rng.choice((0.0, 0.2, 2.0)),
            token_s=rng.choice((0.0, 0.02, 0.3)),
            trouble=rng.choice((0.0, 0.0, 0.05)),
        )
        names = [f"{role}/{i}" for role in kill for i in range(counts.get(role, 1))]
        num_kills = rng.choice((1, 2, 5)) if names else 0
        num_breaks = rng.choice((1, 3)) if breaks else 0
        roles = ("dispatcher", "environment", "grader", "generator", "learner", "parameter_server", LAUNCHER)
        span_s = rng.choice((0.5, 5.0, 20.0))
        return replace(
            plan,
            kills=tuple(sorted((rng.random() * span_s, rng.choice(names)) for _ in range(num_kills))),
            breaks=tuple(
                sorted((rng.random() * span_s, *rng.sample(roles, 2), rng.randint(1, 3)) for _ in range(num_breaks))
            ),
        )


class CountingTasks:
    """Task i asks for i."""

    def task(self, index: int) -> Task:
        return Task(f"t{index}", "counting", (ChatMessage("user", "say it"),), str(index))

    def held_out(self, num: int) -> list[Task]:
        return [Task(f"h{i}", "counting", (ChatMessage("user", "say it"),), str(i)) for i in range(num)]

    def fingerprint(self) -> str:
        return "counting"


@dataclass
class Gauge:
    """Sessions inside author's code, by the environment's process."""

    limit: int
    open: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def enter(self, process: str) -> None:
        self.open[process] += 1
        if self.open[process] > self.limit:
            self.violations.append(f"{process} runs {self.open[process]} sessions in {self.limit} slots")


class SmallEnvironment:
    """One turn; now and then it raises."""

    def __init__(self, gauge: Gauge, rng: random.Random, trouble: float) -> None:
        self._gauge, self._rng, self._trouble = gauge, rng, trouble
        self._process = PROCESS.get()
        gauge.enter(self._process)

    async def reset(self, task: Task) -> Observation:
        return Observation(task.prompt)

    async def step(self, turn: ChatMessage) -> StepOutcome:
        if self._rng.random() < self._trouble:
            raise RuntimeError("the scripted environment broke")
        return StepOutcome()

    async def close(self) -> None:
        self._gauge.open[self._process] -= 1


class DrawnGrading:
    """A reward by the session's name; now and then none."""

    isolation = "inline"

    def __init__(self, trouble: float) -> None:
        self._trouble = trouble

    def grade(self, trajectory: Trajectory) -> Grade:
        rng = random.Random(trajectory.spec.session_id)
        if rng.random() < self._trouble:
            return Grade(None)
        return Grade(float(rng.random() < 0.5))


@dataclass(frozen=True)
class Sealed:
    version: int
    step: int

    def seal(self) -> Manifest:
        return Manifest(self.version, self.step, "shm", "", 0, (), (), {})


class BufferNumbers:
    """A sender of weights without weights: it keeps the rule of the buffers."""

    def __init__(self, num_buffers: int = 2) -> None:
        self._free = num_buffers
        self._staged: set[int] = set()

    def stage(self, tensors: Any, *, version: int, step: int, dtype: str | None = None) -> Sealed | None:
        if not self._free:
            return None
        self._free -= 1
        self._staged.add(version)
        return Sealed(version, step)

    def release(self, version: int) -> None:
        if version in self._staged:
            self._staged.discard(version)
            self._free += 1

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Checkpoint:
    """What a learner finds when it starts again; and what it has trained, by step."""

    step: int = 0
    saved: bool = False
    trained: dict[int, tuple[str, ...]] = field(default_factory=dict)


class LightLearner(Actor):
    """The learner's way through a run (`actors/learner/actor.py`), without a model."""

    def __init__(self, *, plan: Plan, folder: Path, disk: Checkpoint) -> None:
        self._plan, self._disk = plan, disk
        self._step = disk.step
        self._folder = folder

    async def on_start(self, context: Context) -> None:
        self._versions = VersionLog(self._folder / "versions.jsonl")
        self._dispatcher = DispatcherLink(context, patience_s=900.0)

        async def run(label: str, function: Callable[..., Any], *args: Any) -> Any:
            await context.clock.sleep(self._plan.step_s if label == "train" else 0.001)
            return function(*args)

        self._run = run
        self._publisher = Publisher(
            context, BufferNumbers(), self._versions, tensors=dict, run=run, every_steps=1, dtype=None, timeout_s=120.0
        )
        context.watch("parameter_server")
        context.spawn(self._learn(), "stages")

    async def _learn(self) -> None:
        if self._versions.newest > 0:
            self._disk.trained = {s: ids for s, ids in self._disk.trained.items() if s <= self._step}
            resumed = LearnerResumed(self._step, self._versions.newest, goes_on=True)
            self._versions.resume(self._step)
            await self._dispatcher.ask(resumed, timeout_s=60.0)
        await self._publish_and_serve()
        self._save()
        while self._step < self._plan.steps:
            batch: Batch = await self._dispatcher.ask(NextBatch(self._step, 5.0), timeout_s=65.0)
            if batch.groups:
                await self._train(batch)
            else:
                await self._publisher.publish_if_due(self._step)
        await self._publish_and_serve()
        self._save()
        await self._dispatcher.ask(TrainingFinished(self._step, self._publisher.version), timeout_s=60.0)

    async def _train(self, batch: Batch) -> None:
        ids = tuple(t.spec.session_id for group in batch.groups for t in group.trajectories)
        await self._run("train", lambda: None)
        self._step += 1
        self._disk.trained[self._step] = ids
        await self._dispatcher.ask(BatchTrained(self._step, ids), timeout_s=60.0)
        await self._publisher.publish_if_due(self._step)
        if self._plan.checkpoint_every and self._step % self._plan.checkpoint_every == 0:
            self._save()

    async def _publish_and_serve(self) -> None:
        if self._publisher.version_step != self._step:
            await self._publisher.publish(self._step)
        await self._publisher.wait_served(self._publisher.version)

    def _save(self) -> None:
        self._disk.step, self._disk.saved = self._step, True

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        self._publisher.served(message.version)
        return Accepted()

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> Accepted:
        self._publisher.released(message.version)
        return Accepted()

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> Accepted:
        self._publisher.refused(message.version, message.reason, step=lambda: self._step)
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        self._publisher.server_up(message.incarnation)

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        """Training goes on with the version in service."""


class End(Actor):
    """The launcher's own actor."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()

    @handles(RunFinished)
    async def end(self, message: RunFinished) -> Accepted:
        self.finished.set()
        return Accepted()


class Ear(Actor):
    """The monitor: hears everything, writes nothing."""

    mailbox = MailboxBound(capacity=64, overflow="drop_oldest")
    heard: ClassVar[int] = 0

    @handles(Metrics)
    async def take(self, message: Metrics) -> None:
        Ear.heard += 1


class Violation(AssertionError):
    """Something that must hold did not."""


def write_model_folder(folder: Path) -> None:
    """A tokenizer of a few words: what an environment reads when it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {"?": 0, "say": 1, "it": 2, "yes": 3, "no": 4, ".": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 5, "max_position_embeddings": 64}))


class Triangle:
    """One run. `folder`: an empty one; `model`: of `write_model_folder`. `taps` hear every message."""

    def __init__(self, seed: int, plan: Plan, folder: Path, model: Path, tap: Any = None) -> None:
        self.seed, self.plan, self.folder, self.model = seed, plan, folder, model
        # Heartbeats show what was lost last; nothing else needs them here.
        beat_s = 1.0 if plan.breaks else None
        self.network = LoopbackNetwork(schedule=Schedule(seed), tap=self._tap, heartbeat_s=beat_s)
        self.processes = Processes(self.network)
        self.gauge = Gauge(plan.slots)
        self.disk = Checkpoint()
        self.end = End()
        self.num_messages = 0
        self._extra_tap = tap
        self._rng = random.Random(f"latencies {seed}")

    # --- the run ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises Violation."""
        try:
            async with asyncio.timeout(GIVE_UP_AFTER_S):
                dispatcher = await self._run()
        except TimeoutError:
            message = f"the run did not end within {GIVE_UP_AFTER_S:g} virtual seconds\n{self.state()}"
            raise Violation(message) from None
        self._check_end(dispatcher)

    async def _run(self) -> Dispatcher | None:
        """From the first start to the last stop. Returns the last dispatcher."""
        await self.processes.open(supervisor=self.end, monitor=Ear())
        chaos = asyncio.ensure_future(self._chaos())
        for name in self._names():
            process = self.processes.start(name, self._maker(name))
            await process.settled.wait()
        await self.end.finished.wait()
        chaos.cancel()
        await asyncio.wait([chaos])
        if not chaos.cancelled() and chaos.exception() is not None:
            raise Violation(f"the chaos ended with {chaos.exception()!r}")
        dispatcher = self.dispatcher
        await self.processes.stop()
        return dispatcher

    def _names(self) -> Iterator[str]:
        yield "parameter_server/0"
        yield "dispatcher/0"
        for role in ("grader", "generator"):
            yield from (f"{role}/{i}" for i in range(self.plan.counts[role]))
        if self.plan.evaluate:
            yield "evaluator/0"
        yield from (f"environment/{i}" for i in range(self.plan.counts["environment"]))
        yield "learner/0"

    def _maker(self, name: str) -> Callable[[], Actor]:
        role = name.partition("/")[0]

        def make() -> Actor:
            actor: Actor = getattr(self, f"_make_{role}")()
            capacity = self.plan.capacities.get(role)
            if capacity is not None:
                actor.mailbox = MailboxBound(capacity=capacity)
            return actor

        return make

    async def _chaos(self) -> None:
        """Kill and restart, break connections, at the plan's times."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        events: list[tuple[float, tuple[Any, ...]]] = [(at_s, ("kill", name)) for at_s, name in self.plan.kills]
        events += [(at_s, ("break", *rest)) for at_s, *rest in self.plan.breaks]
        for at_s, (what, *rest) in sorted(events, key=lambda event: event[0]):
            await asyncio.sleep(max(0.0, began_s + at_s - loop.time()))
            if what == "kill" and rest[0] in self.processes.living:
                noticed_s = self._rng.choice((0.0, 0.01, 0.5))
                self.processes.kill(rest[0], noticed_after_s=noticed_s)
                loop.call_later(noticed_s + self._rng.choice((0.0, 0.1, 3.0)), self._restart, rest[0])
            elif what == "break":
                self._break(*rest)

    def _restart(self, name: str) -> None:
        if name not in self.processes.living and not self.end.finished.is_set():
            self.processes.start(name, self._maker(name))

    def _break(self, source: str, target: str, num: int) -> None:
        def one(role: str) -> str | None:
            names = [p.incarnation for n, p in self.processes.living.items() if n.partition("/")[0] == role]
            return self._rng.choice(names) if names else None

        ends = one(source), one(target)
        if ends[0] is not None and ends[1] is not None:
            self.network.lose(ends[0], ends[1], Lane.CONTROL, num)

    # --- actors -----------------------------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> Dispatcher | None:
        process = self.processes.living.get("dispatcher/0")
        return process.actor if process is not None and isinstance(process.actor, Dispatcher) else None

    def _make_dispatcher(self) -> Actor:
        plan = self.plan
        return Dispatcher(
            tasks=CountingTasks(),
            group_size=plan.group_size,
            batch_sessions=plan.batch_sessions,
            max_lag_versions=plan.max_lag,
            over_age=plan.over_age,  # type: ignore[arg-type]
            max_tokens=8,
            evaluation=EvaluationSettings(num_prompts=2, samples=1, every_steps=2) if plan.evaluate else None,
            ledger_path=str(self.folder / "ledger.sqlite"),
            session_timeout_s=200.0,
            metrics_every_s=20.0,
        )

    def _make_environment(self) -> Actor:
        rng = random.Random(f"environment {self.seed} {PROCESS.get()}")
        trouble = self.plan.trouble
        return EnvironmentActor(
            environment=lambda: SmallEnvironment(self.gauge, rng, trouble),
            model_path=str(self.model),
            slots=self.plan.slots,
            context_tokens=64,
            generate_timeout_s=60.0,
            session_timeout_s=120.0,
            metrics_every_s=60.0,
        )

    def _make_grader(self) -> Actor:
        return Grader(
            grading=DrawnGrading(self.plan.trouble),
            trajectories_dir=str(self.folder / "trajectories"),
            concurrency=self._rng.choice((1, 4)),
            metrics_every_s=60.0,
        )

    def _make_generator(self) -> Actor:
        rng = random.Random(f"engine {self.seed} {PROCESS.get()}")
        plan = self.plan

        def turn(request: Generate) -> ScriptedTurn:
            if rng.random() < plan.trouble:
                return ScriptedTurn(failure=ValueError("the scripted engine refused"))
            said = tuple(rng.choice((3, 4)) for _ in range(rng.randint(0, 3)))
            return ScriptedTurn((*said, 5), first_token_s=rng.random() * plan.token_s, token_s=plan.token_s)

        engine = ScriptedEngine(script=turn, context_tokens=64, stage_s=0.05, pause_s=0.02)
        return Generator(engine=engine, metrics_period_s=60.0)

    _make_evaluator = _make_generator

    def _make_parameter_server(self) -> Actor:
        return ParameterServer(stage_timeout_s=30.0, commit_timeout_s=30.0)

    def _make_learner(self) -> Actor:
        return LightLearner(plan=self.plan, folder=self.folder, disk=self.disk)

    # --- what must hold ---------------------------------------------------------------------------------------------

    def _tap(self, now_s: float, source: str, target: str, lane: Lane, frames: Any) -> None:
        self.num_messages += 1
        if self._extra_tap is not None:
            self._extra_tap(now_s, source, target, lane, frames)
        self._check_now()

    def _check_now(self) -> None:
        """After every message."""
        if self.num_messages > MOST_MESSAGES:
            raise_later(self, f"the run does not end: {self.num_messages} messages")
        if self.processes.failures:
            raise_later(self, self.processes.failures[0])
        dispatcher = self.dispatcher
        if dispatcher is None:
            return
        training = dispatcher.training
        issued, dropped = training.ledger.issued, sum(training.ledger.dropped.values())
        limit = (training.versions.newest_step + self.plan.max_lag + 1) * self.plan.batch_sessions
        if issued - dropped > limit and "learner" not in self.processes.num_killed:
            raise_later(self, f"issued {issued} - dropped {dropped} exceeds admission's {limit}")
        for name, used in dispatcher.placement._used.items():
            if len(used) > dispatcher.placement._slots[name]:
                raise_later(self, f"{name} is given {len(used)} sessions for {dispatcher.placement._slots[name]} slots")

    def _check_end(self, dispatcher: Dispatcher | None) -> None:
        problems = [*self.processes.failures, *self.gauge.violations]
        rows = self._journal()
        states = Counter(state for _, state, _, _ in rows)
        if dispatcher is not None:
            issued = dispatcher.training.ledger.issued
            if len(rows) != issued:
                problems.append(f"{issued} sessions were issued, the journal has {len(rows)}")
        if set(states) - {"trained", "dropped"}:
            problems.append(f"sessions have not ended: {dict(states)}")
        reasons = [session for session, state, reason, _ in rows if (state == "dropped") != (reason is not None)]
        if reasons:
            problems.append(f"{reasons[:3]} ended without the reason that their state needs")
        recorded = {session: step for session, state, _, step in rows if state == "trained"}
        learned = [(session, step) for step, ids in self.disk.trained.items() for session in ids]
        twice = [session for session, num in Counter(s for s, _ in learned).items() if num > 1]
        if twice:
            problems.append(f"trained twice: {twice[:5]}")
        if dict(learned) != recorded:
            differ = dict(set(dict(learned).items()) ^ set(recorded.items()))
            problems.append(
                f"the journal and the learner differ about what was trained, e.g. {dict(list(differ.items())[:5])}"
            )
        if max(self.disk.trained, default=0) != self.plan.steps:
            problems.append(f"the learner ended at step {max(self.disk.trained, default=0)} of {self.plan.steps}")
        rest = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if rest:
            problems.append(f"tasks are left: {rest[:5]}")
        if problems:
            raise Violation("\n".join(problems))

    def _journal(self) -> list[tuple[str, str, str | None, int | None]]:
        database = sqlite3.connect(self.folder / "ledger.sqlite")
        try:
            return list(database.execute("select session_id, state, reason, step from sessions"))
        finally:
            database.close()

    def state(self) -> str:
        """Who waits for whom, for the report of a run that stands still."""
        living = self.processes.living.values()
        lines = [f"living: {', '.join(p.incarnation + ('' if p.settled.is_set() else ' (starts)') for p in living)}"]
        lines += self.processes.failures
        if self.dispatcher is not None:
            training = self.dispatcher.training
            lines.append(f"ledger: {training.ledger.snapshot()}")
            lines += [
                f"  {r.spec.session_id} attempt {r.spec.attempt} {r.state} at {r.holder}"
                for r in training.ledger.records()
            ][:20]
        for process in self.processes.living.values():
            for cell in process.runtime._cells.values():
                lines += [f"{cell.name} waits for {wait.peer} on {wait.what}" for wait in cell.activity.waits(4)]
        return "\n".join(lines)


def raise_later(triangle: Triangle, problem: str) -> None:
    """Checks run inside the network: their findings end the run from its own task."""
    if problem not in triangle.gauge.violations:
        triangle.gauge.violations.append(problem)
    triangle.end.finished.set()
