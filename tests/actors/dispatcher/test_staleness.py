"""What a lag limit promises, at every limit from 0 to 32, in virtual time, with heavy-tailed sessions."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.ledger import SessionRecord, SessionState
from headrace.actors.dispatcher.settings import TrainingSettings
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.session import SessionSpec, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]

SLOTS = 12
STEPS = 30


class Simulation:
    """A queue of events by time: sessions end, a learner of `step_s` a batch trains and publishes at once. A session
    of a slot samples a token of each version that serves while it runs."""

    def __init__(self, training: TrainingSessions, make: Make, *, sigma: float, step_s: float, seed: int) -> None:
        self.training, self.make, self.sigma, self.step_s = training, make, sigma, step_s
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.num_events = 0
        self.running: dict[str, int] = {}
        self.is_training = False
        self.trained: list[SessionRecord] = []
        training.served(1, 0)

    def run(self) -> None:
        self._advance()
        while self.training.learner_step < STEPS and self.events:
            self.now_s, _, event = heapq.heappop(self.events)
            event()
            self.training.complete_late(self.now_s)
            self._advance()

    def _advance(self) -> None:
        training = self.training
        for session_id, _ in training.take_stopped():
            self.running.pop(session_id, None)
        if not self.is_training and (batch := training.batches.take(training.learner_step)) is not None:
            ids = tuple(t.spec.session_id for group in batch.groups for t in group.trajectories)
            self.is_training = True
            self._at(self.step_s, lambda: self._trained(ids))
        while len(self.running) < SLOTS and (spec := training.next_session(self.now_s)) is not None:
            training.started(spec.session_id, "environment/0", self.now_s)
            self.running[spec.session_id] = training.versions.newest
            self._at(self.rng.lognormvariate(-(self.sigma**2) / 2, self.sigma), lambda spec=spec: self._ended(spec))
        if training.settings.group_deadline_s is not None:
            self._at_deadlines()

    def _at_deadlines(self) -> None:
        if self.num_events % 8 == 0:
            self._at(self.training.settings.group_deadline_s or 0.0, lambda: None)

    def _ended(self, spec: SessionSpec) -> None:
        began = self.running.pop(spec.session_id, None)
        if began is None:
            return
        versions = list(range(began, self.training.versions.newest + 1))
        self.training.graded(self.make(spec, versions, float(spec.member % 2)), now_s=self.now_s)

    def _trained(self, ids: tuple[str, ...]) -> None:
        step = self.training.learner_step + 1
        self.is_training = False
        self.training.batches.trained(step, ids)
        changes = self.training.ledger.take_changes().records
        self.trained += [record for record in changes if record.state is SessionState.TRAINED]
        self.training.served(step + 1, step)

    def _at(self, delay_s: float, event: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (self.now_s + delay_s, self.num_events, event))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    max_lag=st.integers(0, 32),
    sigma=st.sampled_from([0.0, 1.0, 1.5]),
    step_s=st.sampled_from([0.1, 0.7, 3.0]),
    over_age=st.sampled_from(["train", "mask", "drop", "cancel"]),
    consumption=st.sampled_from(["oldest_ready", "fifo", "newest"]),
    extra=st.sampled_from([0, 0, 1]),
    deadline_s=st.sampled_from([None, None, 1.5]),
    seed=st.integers(0, 1000),
)
def test_every_limit_behaves_as_stated(
    tasks: TaskSource,
    make_trajectory: Make,
    make_settings: Callable[..., TrainingSettings],
    max_lag: int,
    sigma: float,
    step_s: float,
    seed: int,
    **choices: Any,
) -> None:
    """The run reaches its end; nothing trained is older than the hard limit unless the policy lets it through; the mean
    stays within the pace; the ledger balances."""
    config = make_settings(
        group_size=2,
        batch_sessions=4,
        max_lag_versions=max_lag,
        over_age=choices["over_age"],
        consumption=choices["consumption"],
        group_extra=choices["extra"],
        group_deadline_s=choices["deadline_s"],
    )
    training = TrainingSessions(config, tasks)
    simulation = Simulation(training, make_trajectory, sigma=sigma, step_s=step_s, seed=seed)
    simulation.run()
    assert training.learner_step == STEPS, "it never stands still"
    lags = [record.lag for record in simulation.trained if record.lag is not None]
    assert len(lags) == len(simulation.trained) > 0
    if config.over_age != "train":
        assert max(lags) <= config.hard_lag
    assert sum(lags) / len(lags) <= max_lag + 1e-9
    training.ledger.check()


def test_the_pace_is_reached_where_the_learner_is_slow(
    tasks: TaskSource, make_trajectory: Make, make_settings: Callable[..., TrainingSettings]
) -> None:
    """Generators that are never short of work run ahead as far as they may: the lag that was asked for is the lag."""
    for max_lag in (1, 4, 8):
        training = TrainingSessions(make_settings(max_lag_versions=max_lag, batch_sessions=4), tasks)
        simulation = Simulation(training, make_trajectory, sigma=0.0, step_s=20.0, seed=1)
        simulation.run()
        late = [record.lag for record in simulation.trained if record.step is not None and record.step > max_lag + 1]
        assert set(late) == {max_lag}
