"""A dispatcher that is rebuilt from its journal at any point, among environments, graders and a learner that die too.

The world here keeps its side of the contract: what was not acknowledged is said again, a tell may be lost, a restarted
learner goes back to its checkpoint and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.batches import ReadyBatch
from headrace.actors.dispatcher.curriculum import BySuccess, InOrder, TaskOrder
from headrace.actors.dispatcher.journal import Journal
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.reconciling import Reconciled, settle, take_answer
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import SessionsHeld
from headrace.actors.session import SessionSpec, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]
MakeSettings = Callable[..., TrainingSettings]

ENVIRONMENTS, GRADERS = ("environment/0", "environment/1"), ("grader/0", "grader/1")


@dataclass
class _Learner:
    """`record` is its own: step → ids. `ever`: every id that ever went into weights, in whichever life."""

    step: int = 0
    checkpoint: int = 0
    batch: ReadyBatch | None = None
    unreported: tuple[str, ...] | None = None
    record: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ever: list[str] = field(default_factory=list)
    version: int = 0
    steps: dict[int, int] = field(default_factory=dict)


class _World:
    def __init__(
        self,
        config: TrainingSettings,
        tasks: TaskSource,
        make: Make,
        path: str = ":memory:",
        make_order: Callable[[], TaskOrder] = InOrder,
    ) -> None:
        self.make_order = make_order
        self.config, self.tasks, self.make = config, tasks, make
        self.journal = Journal(path)
        self.training = TrainingSessions(config, tasks, make_order())
        self.held: dict[str, dict[str, SessionSpec]] = {name: {} for name in ENVIRONMENTS + GRADERS}
        self.began: dict[str, int] = {}
        self.learner = _Learner()
        self.publish()

    # --- the dispatcher ---------------------------------------------------------------------------------------------

    def commit(self) -> None:
        training = self.training
        self.journal.write(training.ledger.take_changes(), training.versions.take_changes(), training.facts())

    def restart(self) -> None:
        """What was not committed is gone. The others live, and answer."""
        training = TrainingSessions(self.config, self.tasks, self.make_order())
        snapshot = self.journal.load()
        if snapshot is not None:
            training.restore(snapshot, now_s=0.0)
        self.training = training
        self.serve()  # the parameter server says so to whoever comes up
        found, placement = Reconciled(), Placement()
        for name in ENVIRONMENTS + GRADERS:
            held = tuple((session_id, spec.attempt) for session_id, spec in self.held[name].items())
            take_answer(found, training, placement, name, SessionsHeld(held, "i", 1000))
        settle(found, training)
        for session_id in found.lost:
            attempt = training.attempt_of(session_id)
            assert attempt is not None
            training.failed(session_id, attempt, "lost", "")
        for name, ids in found.unwanted.items():
            for session_id in ids:
                del self.held[name][session_id]
        self.commit()

    def cancel_stopped(self) -> None:
        for session_id, _ in self.training.take_stopped():
            for name in ENVIRONMENTS:
                self.held[name].pop(session_id, None)

    # --- sessions: each of these ends in a commit, or in a crash just before it -------------------------------------

    def start(self, number: int, crash: bool) -> None:
        spec = self.training.next_session(0.0)
        if spec is None:
            return
        environment = ENVIRONMENTS[number % 2]
        self.training.started(spec.session_id, environment, 0.0)
        if crash:
            return self.restart()
        self.commit()
        for name in ENVIRONMENTS:  # a newer attempt takes the older one's place
            self.held[name].pop(spec.session_id, None)
        self.held[environment][spec.session_id] = spec
        self.began.setdefault(spec.session_id, self.learner.version)

    def move(self, number: int, crash: bool) -> None:
        """The grader acknowledges, then the environment tells it; the tell may be lost."""
        environment = ENVIRONMENTS[number % 2]
        found = _pick(self.held[environment], number)
        if found is None:
            return
        grader = GRADERS[number // 2 % 2]
        del self.held[environment][found.session_id]
        self.held[grader][found.session_id] = found
        if crash:
            return self.restart()
        self.training.moved(found.session_id, found.attempt, grader)

    def grade(self, number: int, crash: bool, *, reward: float | None) -> None:
        grader = GRADERS[number % 2]
        spec = _pick(self.held[grader], number)
        if spec is None:
            return
        versions = list(range(self.began[spec.session_id], self.learner.version + 1))
        self.training.graded(self.make(spec, versions, reward))
        if crash:
            return self.restart()  # it has it still, and delivers it again
        self.commit()
        if number % 5:  # else the answer was lost
            del self.held[grader][spec.session_id]

    def work(self, number: int) -> None:
        """Some sessions go all the way."""
        for turn in range(number % 9):
            self.start(number + turn, crash=False)
            self.move(number + turn, crash=False)
            self.move(number + turn + 1, crash=False)
            self.grade(number + turn, crash=False, reward=float((number + turn) % 2))
            self.grade(number + turn + 1, crash=False, reward=float(number % 2))

    def fail(self, number: int, crash: bool) -> None:
        environment = ENVIRONMENTS[number % 2]
        spec = _pick(self.held[environment], number)
        if spec is None:
            return
        self.training.failed(spec.session_id, spec.attempt, "failed", "")
        if crash:
            return self.restart()
        self.commit()
        self.held[environment].pop(spec.session_id, None)

    def lose_actor(self, number: int, crash: bool) -> None:
        name = (ENVIRONMENTS + GRADERS)[number % 4]
        self.held[name].clear()
        if crash:  # both die: the successor asks the other one's successor
            return self.restart()
        for record in self.training.held_by(name):
            self.training.failed(record.spec.session_id, record.spec.attempt, "lost", "")
        self.commit()

    # --- the learner ------------------------------------------------------------------------------------------------

    def publish_if_due(self) -> None:
        if self.learner.steps[self.learner.version] < self.learner.step:
            self.publish()

    def publish(self) -> None:
        learner = self.learner
        learner.version += 1
        learner.steps[learner.version] = learner.step
        self.serve()

    def serve(self) -> None:
        learner = self.learner
        self.training.served(learner.version, learner.steps[learner.version])

    def ask(self, crash: bool) -> None:
        if self.learner.batch is not None or self.learner.unreported is not None:
            return
        batch = self.training.batches.take(self.learner.step)
        if crash:
            return self.restart()
        self.commit()
        self.learner.batch = batch

    def train(self, number: int, crash: bool) -> None:
        """One step over the batch, but for what is refused; then the report, which may have to be said twice."""
        learner = self.learner
        if learner.unreported is None and learner.batch is not None:
            ids = [t.spec.session_id for group in learner.batch.groups for t in group.trajectories]
            learner.unreported = tuple(ids[number % 3 if len(ids) > 3 else 0 :])
            assert not set(learner.unreported) & set(learner.ever), "trained twice"
            learner.ever += learner.unreported
            learner.step += 1
            learner.record[learner.step] = learner.unreported
            learner.batch = None
        if learner.unreported is not None:
            self.training.batches.trained(learner.step, learner.unreported)
            if crash:
                return self.restart()
            self.commit()
            if number % 5:  # else the answer was lost
                learner.unreported = None

    def save(self) -> None:
        """A learner saves after the dispatcher has acknowledged the step."""
        if self.learner.unreported is None:
            self.learner.checkpoint = self.learner.step

    def lose_learner(self, crash: bool) -> None:
        learner = self.learner
        learner.step, learner.batch, learner.unreported = learner.checkpoint, None, None
        learner.record = {step: ids for step, ids in learner.record.items() if step <= learner.checkpoint}
        for attempt in range(1 + crash):
            self.commit()
            tasks, next_task = (
                self.journal.tasks_trained_after(learner.step),
                self.journal.next_task_after(learner.step),
            )
            self.training.roll_back(learner.step, learner.version, tasks=tasks, next_task=next_task)
            if crash and not attempt:
                self.restart()
                continue
            self.commit()
        assert self.training.learner_step == learner.checkpoint
        self.publish()

    # --- what must hold ---------------------------------------------------------------------------------------------

    def check_restored(self) -> None:
        """A machine rebuilt from what is committed is the one that committed it."""
        self.commit()
        snapshot = self.journal.load()
        assert snapshot is not None
        again = TrainingSessions(self.config, self.tasks, self.make_order())
        again.restore(snapshot, now_s=0.0)
        assert _state(again) == _state(self.training)

    def rows(self) -> list[dict[str, Any]]:
        database = self.journal._database
        names = [column[1] for column in database.execute("pragma table_info(sessions)")]
        return [dict(zip(names, row, strict=True)) for row in database.execute("select * from sessions")]


def _pick(held: dict[str, SessionSpec], number: int) -> SessionSpec | None:
    specs = list(held.values())
    return specs[number % len(specs)] if specs else None


def _state(training: TrainingSessions) -> dict[str, Any]:
    ledger = training.ledger
    return {
        "facts": training.facts(),
        "counts": ledger.snapshot(),
        "room": training.room,
        "wasted": +ledger.wasted_tokens,
        "trained_tokens": ledger.trained_tokens,
        "versions": (training.versions._steps, training.versions._versions),
        "records": {
            r.spec.session_id: (r.spec, r.state, r.holder, r.version_at_start, r.reward, r.version_tokens, r.task_index)
            for r in ledger.records()
        },
        "groups": {
            group_id: (group.order, group.waiting, sorted(group.graded))
            for group_id, group in training.groups._groups.items()
        },
        "ready": sorted(
            (r.group.group_id, r.order, r.arrival, r.oldest_version, r.step_when_ready, _masks(r.group.trajectories))
            for r in training.batches.buffer._ready
        ),
        "batch": sorted((g.group_id, _masks(g.trajectories)) for g in training.batches.batch),
    }


def _masks(trajectories: tuple[Trajectory, ...]) -> list[tuple[int, list[bool], list[int]]]:
    return [(t.spec.member, t.loss_mask.tolist(), t.versions.tolist()) for t in trajectories]


OPS = st.sampled_from(
    [*["start"] * 3, *["move"] * 2, *["grade"] * 3, *["work"] * 4, "none", "fail", "ask", "train", "publish", "save",
     *["step"] * 4, "lose_actor", "lose_learner", "restart"]
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ops=st.lists(st.tuples(OPS, st.integers(0, 10**6), st.integers(0, 7)), min_size=20, max_size=250),
    max_lag=st.integers(0, 2),
    over_age=st.sampled_from(["train", "mask", "drop", "cancel"]),
    consumption=st.sampled_from(["oldest_ready", "fifo", "newest"]),
    group_size=st.integers(1, 3),
    target=st.sampled_from([None, 0.5]),
)
def test_whoever_dies_whenever_the_ledger_balances_and_nothing_is_trained_twice(
    tasks: TaskSource,
    make_trajectory: Make,
    ops: list[tuple[str, int, int]],
    max_lag: int,
    over_age: Any,
    consumption: Any,
    group_size: int,
    target: float | None,
) -> None:
    config = TrainingSettings(
        group_size=group_size, batch_sessions=2 * group_size, max_lag_versions=max_lag, over_age=over_age,
        consumption=consumption, max_attempts=4, zero_variance="drop" if group_size > 1 else "keep",
    )  # fmt: skip
    in_order_of = (lambda: BySuccess(target=target, window=4)) if target is not None else InOrder
    world = _World(config, tasks, make_trajectory, make_order=in_order_of)
    for op, number, chance in ops:
        crash = chance == 0
        if op == "start":
            world.start(number, crash)
        elif op == "move":
            world.move(number, crash)
        elif op in ("grade", "none"):
            world.grade(number, crash, reward=None if op == "none" else float(number % 3 == 0))
        elif op == "fail":
            world.fail(number, crash)
        elif op == "work":
            world.work(number)
        elif op == "step":
            world.ask(crash=False)
            world.train(number, crash)
            world.publish_if_due()
        elif op == "ask":
            world.ask(crash)
        elif op == "train":
            world.train(number, crash)
        elif op == "publish":
            world.publish_if_due()
        elif op == "save":
            world.save()
        elif op == "lose_actor":
            world.lose_actor(number, crash)
        elif op == "lose_learner":
            world.lose_learner(crash)
        elif op == "restart":
            world.restart()
        world.cancel_stopped()
        assert world.training.ledger.num_open <= (max_lag + 1 + 1) * config.batch_sessions
        if chance == 1:
            world.check_restored()
    while world.learner.unreported is not None:
        world.train(1, crash=False)
    world.training.finish()
    world.commit()
    rows = world.rows()
    assert {row["state"] for row in rows} <= {"trained", "dropped"}
    assert all((row["reason"] is None) == (row["state"] == "trained") for row in rows)
    trained = {row["session_id"]: row["step"] for row in rows if row["state"] == "trained"}
    assert trained == {s: step for step, ids in world.learner.record.items() for s in ids}
    assert all(row["lag"] >= 0 for row in rows if row["state"] == "trained")
    issued = {row["group_id"]: row["task_index"] for row in rows}
    rolled_back = {row["group_id"] for row in rows if row["reason"] == "rolled_back"}
    in_order = list(dict.fromkeys(issued[group_id] for group_id in sorted(issued)))
    assert target is not None or in_order == sorted(in_order), "out of order"
    counted = [index for group_id, index in issued.items() if group_id not in rolled_back]
    assert len(counted) == len(set(counted)), "a task was issued twice though its group was not lost"
    issuer = world.training.issuer
    lost_for_good = set(in_order) - set(counted) - set(issuer.again)
    assert {tasks.task(index).task_id for index in lost_for_good} <= set(issuer.quarantined)
    quarantined = {tasks.task(index).task_id for index in range(max(in_order, default=-1) + 1)} - {
        tasks.task(index).task_id
        for index in [*in_order, *(index for index, _ in issuer.order.state_dict().get("waiting", []))]
    }
    assert quarantined <= set(world.training.issuer.quarantined), "a task was skipped"
    assert world.journal._database.execute("select count(*) from trajectories").fetchone() == (0,)
    assert world.training.ledger.issued == len(rows)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ops=st.lists(st.tuples(OPS, st.integers(0, 10**6)), min_size=20, max_size=200),
    group_size=st.integers(2, 3),
)
def test_in_sync_mode_an_interrupted_run_draws_the_tasks_that_it_would_have_drawn(
    tasks: TaskSource, make_trajectory: Make, ops: list[tuple[str, int]], group_size: int
) -> None:
    """Whatever was under way behind the checkpoint: the next batches are of the very tasks, and seeds, in order."""
    config = TrainingSettings(
        group_size=group_size, batch_sessions=2 * group_size, max_lag_versions=0, mode="sync", zero_variance="keep"
    )
    world = _World(config, tasks, make_trajectory)
    seeds: dict[int, list[int | None]] = {}
    for op, number in ops:
        world.start(number, crash=False)
        if op in ("start", "move", "grade", "work"):
            world.work(number)
        elif op in ("step", "ask", "train", "publish"):
            world.ask(crash=False)
            if world.learner.batch is not None:
                trained = [t.spec for group in world.learner.batch.groups for t in group.trajectories]
                now = [spec.sampling.seed for spec in trained]
                assert seeds.setdefault(world.learner.step + 1, now) == now
            world.train(0, crash=False)
            world.publish_if_due()
        elif op == "save":
            world.save()
        elif op == "lose_learner":
            world.lose_learner(crash=False)
        world.cancel_stopped()
