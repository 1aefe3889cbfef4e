"""Supervision decided without a process: one-for-one, restart intensity, failed starts, backoff, and the end."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.launch.settings import SupervisorSettings
from headrace.launch.supervisor_state import Escalate, Exit, Ignore, Restart, RestartPolicy, SupervisorState

POLICY = RestartPolicy(
    ("grader",), max_restarts=3, window_s=60, first_delay_s=0.5, max_delay_s=2, jitter=0, start_timeout_s=30
)
CHILDREN = {"grader-0": "grader", "grader-1": "grader", "learner-0": "learner"}


def state(policy: RestartPolicy = POLICY) -> SupervisorState:
    made = SupervisorState(policy)
    for child, role in CHILDREN.items():
        made.own(child, role)
        made.started(child, 0.0)
        made.up(child)
    return made


def back(made: SupervisorState, child: str, now_s: float = 0.0) -> None:
    made.started(child, now_s)
    made.up(child)


def test_a_loss_that_is_fatal_names_child_and_signal() -> None:
    decision = state().exited("learner-0", Exit(-9, last_lines="its last words"), now_s=0)
    assert isinstance(decision, Escalate)
    assert "learner-0" in decision.reason
    assert "signal 9" in decision.reason
    assert (decision.cause, decision.last_lines) == ("learner-0", "its last words")
    assert str(Exit(-9, "no heartbeat for 60.0 s")) == "killed: no heartbeat for 60.0 s"


def test_by_default_every_role_is_restarted() -> None:
    made = state(RestartPolicy())
    assert all(isinstance(made.exited(child, Exit(-9), now_s=0.0), Restart) for child in CHILDREN)


def test_backoff_doubles_to_its_bound_and_the_others_go_on() -> None:
    made = state()
    delays = []
    for i in range(3):
        decision = made.exited("grader-0", Exit(1), now_s=float(i))
        assert isinstance(decision, Restart)
        delays.append(decision.after_s)
        back(made, "grader-0")
    assert delays == [0.5, 1.0, 2.0]
    assert made.phase("grader-1") == "running"


def test_what_died_together_does_not_come_back_together() -> None:
    """messaging fault 23: backoff with jitter; the same for the same seed."""

    def delays(seed: int) -> list[float]:
        made = SupervisorState(RestartPolicy(first_delay_s=1.0), seed)
        for i in range(8):
            made.own(f"grader-{i}", "grader")
            made.started(f"grader-{i}", 0.0)
        decisions = [made.exited(f"grader-{i}", Exit(-9), now_s=0.0) for i in range(8)]
        return [decision.after_s for decision in decisions if isinstance(decision, Restart)]

    assert len(set(delays(1))) == 8
    assert all(0.5 <= delay_s <= 1.0 for delay_s in delays(1))
    assert delays(1) == delays(1)
    assert delays(1) != delays(2)


def test_restart_intensity_escalates_and_names_the_first_cause() -> None:
    made = state()
    for child in ("grader-1", "grader-0", "grader-0"):
        assert isinstance(made.exited(child, Exit(7, last_lines=f"{child} says why"), now_s=1.0), Restart)
        back(made, child)
    decision = made.exited("grader-0", Exit(1), now_s=2.0)
    assert isinstance(decision, Escalate)
    assert "launch.max_restarts" in decision.reason
    assert "the first was grader-1 (exit code 7)" in decision.reason
    assert decision.last_lines == "grader-1 says why"


def test_a_crash_before_it_is_up_escalates_long_before_the_window_is_full() -> None:
    """messaging fault 23: a crash in a constructor, with an engine that takes a minute to get there."""
    made = SupervisorState(RestartPolicy(max_failed_starts=3))
    made.own("generator-0", "generator")
    decisions = []
    for i in range(3):
        made.started("generator-0", i * 100.0)
        decisions.append(made.exited("generator-0", Exit(1, last_lines=f"life {i}"), now_s=i * 100.0 + 60))
    assert [type(decision) for decision in decisions] == [Restart, Restart, Escalate]
    assert isinstance(decisions[-1], Escalate)
    assert "before it was up, 3 times in a row" in decisions[-1].reason
    assert decisions[-1].last_lines == "life 0"


def test_one_that_was_up_between_has_not_failed_to_start() -> None:
    made = SupervisorState(RestartPolicy(max_failed_starts=2))
    made.own("generator-0", "generator")
    for i in range(5):
        made.started("generator-0", i * 100.0)
        if i % 2:
            made.up("generator-0")
        assert isinstance(made.exited("generator-0", Exit(-9), now_s=i * 100.0), Restart)


def test_a_start_has_a_deadline() -> None:
    made = SupervisorState(POLICY)
    made.own("grader-0", "grader")
    assert made.late(100.0) == []
    made.started("grader-0", 100.0)
    assert made.late(130.0) == []
    assert made.late(130.1) == ["grader-0"]
    made.up("grader-0")
    assert made.late(1000.0) == []


def test_old_restarts_are_forgotten() -> None:
    made = state()
    for i in range(10):
        decision = made.exited("grader-0", Exit(1), now_s=i * 61.0)
        assert decision == Restart("grader-0", 0.5, 1)
        back(made, "grader-0", i * 61.0)


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    made = state()
    made.stop("learner-0")
    assert made.exited("learner-0", Exit(-15), now_s=0) == Ignore()
    made.own("learner-0", "learner")  # it may come back, after its node was lost
    assert made.phase("learner-0") == "waiting"
    made.stop_all()
    assert made.exited("grader-0", Exit(1), now_s=0) == Ignore()
    assert made.living() == ["grader-1"]


def test_bad_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="max_restarts must be >= 0"):
        RestartPolicy(max_restarts=-1)
    with pytest.raises(ValueError, match="max_failed_starts must be >= 1"):
        RestartPolicy(max_failed_starts=0)
    with pytest.raises(ValueError, match="window_s"):
        RestartPolicy(window_s=math.nan)
    with pytest.raises(ValueError, match="drain_timeout_s"):
        SupervisorSettings(RestartPolicy(), drain_timeout_s=math.nan)


class Supervision(RuleBasedStateMachine):
    """Whatever dies when: no child runs twice, nothing is restarted while ending, and the intensity holds."""

    def __init__(self) -> None:
        super().__init__()
        self.made = state()
        self.now_s = 0.0
        self.restarts_s: list[float] = []
        self.running = set(CHILDREN)
        self.starting: set[str] = set()
        self.waiting: set[str] = set()
        self.failed_starts = dict.fromkeys(CHILDREN, 0)
        self.escalated = False

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: (self.running or self.starting) and not self.escalated)
    @rule(data=st.data(), code=st.integers(-15, 3))
    def die(self, data: st.DataObject, code: int) -> None:
        child = data.draw(st.sampled_from(sorted(self.running | self.starting)))
        self.failed_starts[child] += child in self.starting
        self.running.discard(child)
        self.starting.discard(child)
        decision = self.made.exited(child, Exit(code), self.now_s)
        if isinstance(decision, Restart):
            assert not self.made.stopping
            assert child != "learner-0"
            self.restarts_s.append(self.now_s)
            self.waiting.add(child)
        elif isinstance(decision, Escalate):
            recent = [t for t in self.restarts_s if self.now_s - t <= POLICY.window_s]
            too_many = len(recent) == POLICY.max_restarts
            assert child == "learner-0" or too_many or self.failed_starts[child] == POLICY.max_failed_starts
            self.escalated = True

    @precondition(lambda self: self.waiting and not self.made.stopping)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(child)
        self.made.started(child, self.now_s)
        self.starting.add(child)

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def come_up(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.discard(child)
        self.running.add(child)
        self.failed_starts[child] = 0
        self.made.up(child)

    @rule()
    def end(self) -> None:
        self.made.stop_all()

    @invariant()
    def the_living_are_those_that_run(self) -> None:
        assert set(self.made.living()) == self.running | self.starting

    @invariant()
    def intensity(self) -> None:
        for start in self.restarts_s:
            assert sum(start <= t <= start + POLICY.window_s for t in self.restarts_s) <= POLICY.max_restarts


Supervision.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSupervision = Supervision.TestCase
