"""Training sessions as one state machine: random interleavings, the lag bound, retries, quarantine, over-age
policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.ledger import DropReason, SessionRecord, SessionState
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.session import ChatMessage, SessionSpec, Task, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]
MakeSettings = Callable[..., TrainingSettings]


class _Desk:
    """Drives TrainingSessions by hand and remembers what ended."""

    def __init__(self, config: TrainingSettings, tasks: TaskSource, make: Make) -> None:
        self.training = TrainingSessions(config, tasks)
        self._ended: dict[str, SessionRecord] = {}
        self.make = make
        self.running: dict[str, SessionSpec] = {}
        self.began: dict[str, int] = {}

    @property
    def ended(self) -> list[SessionRecord]:
        for record in self.training.ledger.take_changes().records:
            if record.state in (SessionState.TRAINED, SessionState.DROPPED):
                assert record.spec.session_id not in self._ended, "a session ends once"
                self._ended[record.spec.session_id] = record
        return list(self._ended.values())

    def start(self) -> SessionSpec | None:
        spec = self.training.next_session(0.0)
        if spec is not None:
            self.training.started(spec.session_id, "environment/0", 0.0)
            self.running[spec.session_id] = spec
            self.began[spec.session_id] = self.training.versions.newest
        return spec

    def start_all(self) -> list[SessionSpec]:
        return list(iter(self.start, None))

    def grade(self, spec: SessionSpec, reward: float | None, versions: list[int] | None = None) -> None:
        self.running.pop(spec.session_id, None)
        seen = versions or list(range(self.began[spec.session_id], self.training.versions.newest + 1))
        self.training.graded(self.make(spec, seen, reward))

    def step(self, step: int) -> list[str] | None:
        """One optimizer step from a learner that has done `step`: trained at once."""
        batch = self.training.batches.take(step)
        if batch is None:
            return None
        ids = [t.spec.session_id for g in batch.groups for t in g.trajectories]
        self.training.batches.trained(step + 1, tuple(ids))
        return ids

    def ends(self) -> Counter[str]:
        return Counter(str(r.reason or r.state) for r in self.ended)


@pytest.fixture
def desk(tasks: TaskSource, make_trajectory: Make, make_settings: MakeSettings) -> Callable[..., _Desk]:
    def make(**changes: Any) -> _Desk:
        made = _Desk(make_settings(**changes), tasks, make_trajectory)
        made.training.served(1, 0)
        return made

    return make


def mixed(specs: list[SessionSpec]) -> list[tuple[SessionSpec, float]]:
    return [(spec, float(spec.member % 2)) for spec in specs]


def test_nothing_is_issued_before_a_version_is_served(
    tasks: TaskSource, make_trajectory: Make, make_settings: MakeSettings
) -> None:
    desk = _Desk(make_settings(), tasks, make_trajectory)
    assert desk.start() is None
    desk.training.served(1, 0)
    assert desk.start() is not None


def test_admission_is_the_formula(desk: Callable[..., _Desk]) -> None:
    """issued - dropped <= (version's step + max_lag_versions + 1) * batch_sessions."""
    for lag in (0, 1, 4):
        made = desk(max_lag_versions=lag)
        assert len(made.start_all()) == (lag + 1) * 4
        made.training.served(2, 3)
        made.training.batches.learner_step = 3
        assert made.training.room == 4 + lag * 4 - made.training.ledger.num_open


def test_a_batch_at_the_learner_still_counts(desk: Callable[..., _Desk]) -> None:
    """Handing a batch out makes no room; the version that holds its step does."""
    made = desk(max_lag_versions=0)
    for spec, reward in mixed(made.start_all()):
        made.grade(spec, reward)
    batch = made.training.batches.take(0)
    assert batch is not None
    assert made.training.room == 0
    made.training.batches.trained(1, tuple(t.spec.session_id for g in batch.groups for t in g.trajectories))
    assert made.training.room == 0
    made.training.served(2, 1)
    assert made.training.room == 4


def test_limit_zero_drops_what_an_update_crossed_and_limit_one_keeps_it(desk: Callable[..., _Desk]) -> None:
    """cases F97: PrimeIntellect-ai/prime-rl#1902: one update raises the lag by exactly one."""
    for hard, expected in ((0, {"over_age": 4}), (1, {"trained": 4})):
        made = desk(max_lag_versions=0, hard_lag_versions=hard)
        specs = made.start_all()
        made.training.served(2, 1)
        for spec, reward in mixed(specs):
            made.grade(spec, reward, [1, 2])
        made.step(1)
        assert made.ends() == expected
        assert {record.lag for record in made.ended} == {1}
        assert made.ended[0].token_lags == {1: 1, 0: 1}


def test_sessions_age_in_the_queue_too(desk: Callable[..., _Desk]) -> None:
    """cases F98: PrimeIntellect-ai/prime-rl#3313: finished at version 0, dequeued at 5, limit 2: dropped at dequeue."""
    made = desk(max_lag_versions=2, hard_lag_versions=2)
    specs = made.start_all()
    for spec, reward in mixed(specs[:4]):
        made.grade(spec, reward)
    for step in range(1, 6):
        made.training.served(step + 1, step)
    assert made.training.batches.take(5) is None
    assert made.ends() == {"over_age": 4}
    assert {record.lag for record in made.ended} == {5}
    assert made.training.ledger.wasted_tokens[DropReason.OVER_AGE] == 4


def test_a_token_may_overtake_the_news_of_its_version(desk: Callable[..., _Desk]) -> None:
    made = desk(max_lag_versions=0, hard_lag_versions=0)
    for spec, reward in mixed(made.start_all()):
        made.grade(spec, reward, [2])
    batch = made.training.batches.take(0)
    assert batch is not None
    assert batch.version_steps == {2: 0}


@pytest.mark.parametrize("policy", ["train", "mask", "drop", "cancel"])
def test_over_age_policies(desk: Callable[..., _Desk], policy: str) -> None:
    made = desk(max_lag_versions=1, hard_lag_versions=1, over_age=policy)
    specs = made.start_all()
    for step in range(1, 4):
        made.training.served(step + 1, step)
    made.training.batches.learner_step = 3
    made.training.served(5, 3)
    stopped = made.training.take_stopped()
    assert len(stopped) == (len(specs) if policy == "cancel" else 0)
    for spec, reward in mixed(specs[:4]):
        made.grade(spec, reward, [2, 3])  # lags 2 and 1
    batch = made.training.batches.take(3)
    if policy in ("drop", "cancel"):
        assert batch is None
        assert set(made.ends()) == {"over_age"}
        return
    assert batch is not None
    trained = batch.groups[0].trajectories[0]
    assert trained.loss_mask.tolist() == [False, False, policy == "train", True]
    assert trained.versions.tolist() == [-1, -1, 2 if policy == "train" else -1, 3]
    wasted = made.training.ledger.wasted_tokens[DropReason.OVER_AGE]
    assert wasted == (4 if policy == "mask" else 0)


def test_masking_drops_members_of_which_nothing_is_left(desk: Callable[..., _Desk]) -> None:
    made = desk(group_size=3, batch_sessions=3, max_lag_versions=1, hard_lag_versions=1, over_age="mask")
    specs = made.start_all()[:3]
    for step in range(1, 4):
        made.training.served(step + 1, step)
    for spec, versions in zip(specs, ([1], [1, 4], [4]), strict=True):
        made.grade(spec, float(spec.member % 2), versions)
    batch = made.training.batches.take(3)
    assert batch is not None
    assert [t.spec.member for t in batch.groups[0].trajectories] == [1, 2]
    assert made.ends() == {"over_age": 1}


def test_a_failed_member_is_tried_again_then_dropped_and_the_group_goes_on(desk: Callable[..., _Desk]) -> None:
    made = desk(group_size=3, batch_sessions=3, max_lag_versions=0, max_attempts=2)
    first, *others = made.start_all()
    for spec in others:
        made.grade(spec, float(spec.member % 2))
    made.training.failed(first.session_id, 0, "failed", "boom")
    again = made.start()
    assert again is not None
    assert (again.session_id, again.attempt, again.sampling.seed) == (first.session_id, 1, first.sampling.seed)
    made.training.failed(first.session_id, 0, "failed", "a stale report of the first attempt")
    assert made.ends() == {}
    assert made.training.next_session(0.0) is None, "a stale report must not start a third attempt"
    made.training.failed(first.session_id, 1, "failed", "boom")
    assert made.ends() == {"failed": 1}
    assert made.step(0) == [spec.session_id for spec in others]


def test_what_is_lost_with_its_holders_is_no_failure_of_its_own(desk: Callable[..., _Desk]) -> None:
    made = desk(max_attempts=2, max_losses=6, max_lag_versions=0)
    innocent = made.start_all()[0].session_id
    for attempt in range(5):
        made.training.failed(innocent, attempt, "lost", "environment/0 is gone")
        made.start_all()
    made.training.failed(innocent, 5, "failed", "once by itself")
    made.start_all()
    record = made.training.ledger.get(innocent)
    assert record is not None
    assert (record.spec.attempt, record.losses, record.holder is None) == (6, 5, False)
    assert made.ends() == {}
    made.training.failed(innocent, 6, "failed", "twice")
    assert made.ends()["failed"] == 1


def test_a_session_that_kills_whoever_runs_it_is_quarantined_in_the_end(desk: Callable[..., _Desk]) -> None:
    made = desk(max_attempts=3, max_losses=20, max_lag_versions=0)
    poison = made.start_all()[0]
    for attempt in range(20):
        assert made.training.issuer.quarantined == {}
        made.training.failed(poison.session_id, attempt, "lost", "environment/0 is gone")
        made.start_all()
    assert made.training.issuer.quarantined == {poison.task.task_id: "lost: environment/0 is gone"}
    assert made.ends() == {"lost": 1, "quarantined": 1}


def test_a_poison_task_is_quarantined_and_listed(desk: Callable[..., _Desk]) -> None:
    """cases G104: NVIDIA-NeMo/RL#3238: it never finishes; after K tries it is set aside, the run goes on, and it
    stays out."""
    made = desk(max_attempts=2, max_lag_versions=0)
    specs = made.start_all()
    poisoned = [spec for spec in specs if spec.task.task_id == "t0"]
    for attempt in range(2):
        for spec in poisoned:
            made.training.failed(spec.session_id, attempt, "timed_out", "no answer in 60 s")
            made.start_all()
    assert made.training.issuer.quarantined == {"t0": "timed_out: no answer in 60 s"}
    assert made.ends() == {"timed_out": 1, "quarantined": 1}
    assert (poisoned[1].session_id, 1) in made.training.take_stopped()
    replacement = [spec for spec in made.running.values() if spec.task.task_id not in ("t0", "t1")]
    assert {spec.task.task_id for spec in replacement} == {"t2"}
    made.training.issuer.next_task = 0
    _, group = made.training.issuer.next_group()
    assert group[0].task.task_id == "t1"


def test_a_missing_reward_is_missing_and_has_a_reason_of_its_own(desk: Callable[..., _Desk]) -> None:
    """cases B41: huggingface/trl#5902: no reward is not 0: the others stand alone; all missing: the group is gone."""
    made = desk(group_size=4, batch_sessions=4, max_lag_versions=1)
    specs = made.start_all()
    for spec, reward in zip(specs[:4], (1.0, 0.0, None, 1.0), strict=True):
        made.grade(spec, reward)
    batch = made.training.batches.take(0)
    assert batch is not None
    assert [t.reward for t in batch.groups[0].trajectories] == [1.0, 0.0, 1.0]
    for spec in specs[4:]:
        made.grade(spec, None)
    assert made.ends() == {"ungraded": 5}
    assert (made.training.counters["graded"], made.training.counters["graded_without_reward"]) == (7, 4)
    assert len(made.training.batches.buffer) == 0


def test_a_bad_trajectory_is_filtered(
    desk: Callable[..., _Desk], make_trajectory: Callable[[SessionSpec, list[int], float | None], Trajectory]
) -> None:
    made = desk(group_size=4, batch_sessions=4)
    bad = make_trajectory(made.start_all()[0], [], None)
    made.training.graded(bad)
    assert made.ends() == {"filtered": 1}
    assert made.training.counters["filtered_no_sampled_tokens"] == 1


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_groups_without_variance(desk: Callable[..., _Desk], policy: str) -> None:
    made = desk(zero_variance=policy)
    specs = made.start_all()
    for spec in specs[:4]:
        made.grade(spec, 1.0 if spec.group_id == specs[0].group_id else 0.0)
    counters = made.training.counters
    assert (counters["groups_all_pass"], counters["groups_all_fail"]) == (1, 1)
    assert made.ends() == ({"zero_variance": 4} if policy == "drop" else {})
    assert (made.training.batches.take(0) is None) == (policy == "drop")


def test_nothing_is_graded_or_trained_twice(desk: Callable[..., _Desk]) -> None:
    made = desk(max_lag_versions=0)
    specs = made.start_all()
    for spec, reward in mixed(specs) + mixed(specs):
        made.grade(spec, reward)
    ids = made.step(0)
    assert ids is not None
    made.training.batches.trained(1, tuple(ids))
    made.grade(specs[0], 1.0)
    assert made.ends() == {"trained": 4}
    assert made.training.counters["trained_twice_or_unknown"] == 4
    assert made.training.counters["graded_twice_or_late"] == 5


def test_an_attempt_that_was_given_up_and_came_through_is_the_one_that_is_booked(desk: Callable[..., _Desk]) -> None:
    made = desk(max_lag_versions=0)
    specs = made.start_all()
    made.training.failed(specs[0].session_id, 0, "lost", "environment/0 is gone")
    made.start_all()
    for spec, reward in mixed(specs):
        made.grade(spec, reward)
    assert made.training.take_stopped() == [(specs[0].session_id, 1)]
    assert made.step(0) is not None
    assert {record.spec.attempt for record in made.ended} == {0}, "what was trained, as the trajectory has it"


def test_what_the_learner_left_out_of_a_batch_is_filtered(desk: Callable[..., _Desk]) -> None:
    made = desk(max_lag_versions=0)
    for spec, reward in mixed(made.start_all()):
        made.grade(spec, reward)
    batch = made.training.batches.take(0)
    assert batch is not None
    made.training.batches.trained(1, tuple(t.spec.session_id for t in batch.groups[0].trajectories))
    assert made.ends() == {"trained": 2, "filtered": 2}


def test_short_batches_do_not_add_up_to_lag(desk: Callable[..., _Desk]) -> None:
    """Each batch is a session short. Were the missing ones admitted for ever after, hundreds of steps would be in
    flight."""
    made = desk(group_size=4, batch_sessions=4, max_lag_versions=0, hard_lag_versions=0, max_attempts=1)
    for step in range(200):
        specs = made.start_all()
        assert len(specs) == 4
        made.training.failed(specs[0].session_id, 0, "failed", "")
        for spec, reward in mixed(specs[1:]):
            made.grade(spec, reward)
        assert made.step(step) is not None
        made.training.served(step + 2, step + 1)
    assert {record.lag for record in made.ended if record.state is SessionState.TRAINED} == {0}


class _Tasks:
    def task(self, index: int) -> Task:
        return Task(f"t{index}", "s", (ChatMessage("user", str(index)),))

    def held_out(self, num: int) -> list[Task]:
        return []

    def fingerprint(self) -> str:
        return ""


OPS = st.sampled_from(
    ["start", "start", "move", "grade", "grade", "grade", "fail", "lost", "step", "serve", "none", "again"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ops=st.lists(st.tuples(OPS, st.integers(0, 10**6)), max_size=300),
    max_lag=st.integers(0, 3),
    hard=st.integers(0, 4),
    over_age=st.sampled_from(["mask", "drop", "cancel"]),
    consumption=st.sampled_from(["oldest_ready", "fifo", "newest"]),
    group_size=st.integers(1, 4),
)
def test_random_interleavings(
    make_trajectory: Make,
    ops: list[tuple[str, int]],
    max_lag: int,
    hard: int,
    over_age: str,
    consumption: str,
    group_size: int,
) -> None:
    """The ledger balances at every instant (it checks itself), admission holds at every issue, the trained lag never
    exceeds the hard limit, nothing is trained twice, and at the end everything issued is trained or dropped with a
    reason."""
    config = TrainingSettings(
        group_size=group_size,
        batch_sessions=2 * group_size,
        max_lag_versions=max_lag,
        hard_lag_versions=max_lag + hard,
        over_age=over_age,  # type: ignore[arg-type]
        consumption=consumption,  # type: ignore[arg-type]
        max_attempts=2,
    )
    desk = _Desk(config, _Tasks(), make_trajectory)
    training = desk.training
    version, learner_step = 1, 0
    training.served(1, 0)
    for op, number in ops:
        running = list(desk.running.values())
        spec = running[number % len(running)] if running else None
        if op == "start":
            desk.start()
            ledger = training.ledger
            limit = (training.versions.newest_step + max_lag + 1) * config.batch_sessions
            assert ledger.issued - sum(ledger.dropped.values()) <= limit
        elif op == "move" and spec is not None:
            training.moved(spec.session_id, spec.attempt, "grader/0")
        elif op in ("grade", "none", "again") and spec is not None:
            reward = None if op == "none" else float(number % 3 == 0)
            desk.grade(spec, reward)
            if op == "again":
                desk.began.setdefault(spec.session_id, 1)
                desk.grade(spec, 1.0)
        elif op in ("fail", "lost") and spec is not None:
            del desk.running[spec.session_id]
            training.failed(spec.session_id, spec.attempt, {"fail": "failed", "lost": "lost"}[op], "x")
        elif op == "step":
            ids = desk.step(learner_step)
            learner_step += ids is not None
        elif op == "serve" and training.versions.newest_step < learner_step:
            version += 1
            training.served(version, learner_step)
        for session_id, _ in training.take_stopped():
            desk.running.pop(session_id, None)
    training.finish()
    counts = training.ledger.snapshot()
    assert counts["issued"] == counts["trained"] + counts["dropped"] == len(desk.ended)
    trained = [r for r in desk.ended if r.state is SessionState.TRAINED]
    assert len({r.spec.session_id for r in desk.ended}) == len(desk.ended)
    assert all(r.lag is not None and 0 <= r.lag <= config.hard_lag for r in trained)
    assert all(max(r.token_lags or {0: 0}) <= config.hard_lag for r in trained)
