"""Groups that go on without their stragglers: over-provisioning and deadlines, and what becomes of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.actors.dispatcher.gauges import gauges
from headrace.actors.dispatcher.ledger import DropReason
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.session import SessionSpec, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]
Begin = Callable[..., TrainingSessions]


@pytest.fixture
def begin(tasks: TaskSource, make_settings: Callable[..., TrainingSettings]) -> Begin:
    def make(**changes: Any) -> TrainingSessions:
        training = TrainingSessions(make_settings(**changes), tasks)
        training.served(1, 0)
        return training

    return make


def start(training: TrainingSessions, num: int, now_s: float = 0.0) -> list[SessionSpec]:
    specs = []
    for _ in range(num):
        spec = training.next_session(now_s)
        assert spec is not None
        training.started(spec.session_id, "environment/0", now_s)
        specs.append(spec)
    return specs


class TestOverProvisioning:
    def test_the_first_graded_make_the_group_and_the_rest_is_stopped_and_counted(
        self, begin: Begin, make_trajectory: Make
    ) -> None:
        training = begin(group_size=4, batch_sessions=4, group_extra=2, max_lag_versions=0)
        specs = start(training, 6)
        assert training.next_session(0.0) is None, "one group of four is all that lag 0 allows, whatever is issued"
        for spec in (specs[5], specs[1], specs[4], specs[2]):
            training.graded(make_trajectory(spec, [1], float(spec.member % 2)), now_s=10.0)
        batch = training.batches.take(0)
        assert batch is not None
        assert [t.spec.member for t in batch.groups[0].trajectories] == [1, 2, 4, 5]
        assert training.take_stopped() == [(specs[0].session_id, 0), (specs[3].session_id, 0)]
        assert training.ledger.dropped == {DropReason.STRAGGLER: 2}
        training.graded(make_trajectory(specs[0], [1], 1.0), now_s=11.0)
        assert training.counters["graded_twice_or_late"] == 1
        training.ledger.check()

    def test_what_fails_leaves_room_for_the_extra_ones(self, begin: Begin, make_trajectory: Make) -> None:
        training = begin(group_size=2, batch_sessions=2, group_extra=1, max_attempts=1, max_lag_versions=0)
        specs = start(training, 3)
        training.failed(specs[0].session_id, 0, "failed", "scripted")
        for spec in specs[1:]:
            training.graded(make_trajectory(spec, [1], float(spec.member % 2)))
        batch = training.batches.take(0)
        assert batch is not None
        assert len(batch.groups[0].trajectories) == 2
        assert training.ledger.dropped == {DropReason.FAILED: 1}

    def test_the_extra_ones_take_no_admission_from_groups(self, begin: Begin) -> None:
        """At a lag of 1 two batches of two groups are under way, extra sessions or not."""
        for extra in (0, 3):
            training = begin(group_size=2, batch_sessions=4, group_extra=extra, max_lag_versions=1)
            start(training, 4 * (2 + extra))
            assert training.next_session(0.0) is None
            assert len(training.groups) == 4

    def test_the_bias_against_long_sessions_is_reported(self, begin: Begin, make_trajectory: Make) -> None:
        training = begin(group_size=2, batch_sessions=2, group_extra=1)
        specs = start(training, 3)
        for spec in specs[:2]:
            trajectory = make_trajectory(spec, [1], float(spec.member % 2))
            trajectory.timings_s["total"] = 3.0
            training.graded(trajectory, now_s=12.0)
        values = gauges(training, Placement())
        assert values["session_s_kept_mean"] == 3.0
        assert values["session_s_begun_mean"] == (3.0 + 3.0 + 12.0) / 3
        assert values["dropped_straggler"] == 1


class TestDeadline:
    def test_a_late_group_goes_on_with_two(self, begin: Begin, make_trajectory: Make) -> None:
        training = begin(group_size=4, batch_sessions=4, group_deadline_s=60.0)
        specs = start(training, 4, now_s=100.0)
        training.graded(make_trajectory(specs[3], [1], 1.0), now_s=110.0)
        assert not training.complete_late(500.0), "one is no group"
        training.graded(make_trajectory(specs[0], [1], 0.0), now_s=120.0)
        assert not training.complete_late(159.9)
        assert training.complete_late(160.0)
        assert training.counters["groups_short"] == 1
        assert training.ledger.dropped == {DropReason.STRAGGLER: 2}
        assert Counter(s for s, _ in training.take_stopped()) == Counter([specs[1].session_id, specs[2].session_id])
        assert training.batches.buffer.num_sessions == 2

    def test_without_a_deadline_it_waits_for_all(self, begin: Begin, make_trajectory: Make) -> None:
        training = begin(group_size=4, batch_sessions=4)
        for spec in start(training, 4)[:3]:
            training.graded(make_trajectory(spec, [1], float(spec.member % 2)))
        assert not training.complete_late(1e9)
        assert len(training.groups) == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"group_extra": -1}, "group_extra must be >= 0"), ({"group_deadline_s": 0.0}, "must be > 0 or null, got 0.0")],
)
def test_what_means_nothing_is_refused(
    make_settings: Callable[..., TrainingSettings], changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        make_settings(**changes)
