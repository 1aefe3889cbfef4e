"""Supervision decided without a process: one-for-one, restart intensity, backoff, and the end."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.launch.settings import SupervisorSettings
from headrace.launch.supervisor_state import Exit, FailRun, Ignore, Restart, RestartPolicy, SupervisorState

POLICY = RestartPolicy(frozenset({"grader"}), max_restarts=3, window_s=60, first_delay_s=0.5, max_delay_s=2)


def state() -> SupervisorState:
    made = SupervisorState({"grader-0": "grader", "grader-1": "grader", "learner-0": "learner"}, POLICY)
    for process in ("grader-0", "grader-1", "learner-0"):
        made.started(process)
    return made


def test_a_loss_that_is_fatal_names_process_and_signal() -> None:
    decision = state().exited("learner-0", Exit(-9), now_s=0)
    assert isinstance(decision, FailRun)
    assert "learner-0" in decision.reason
    assert "signal 9" in decision.reason
    assert str(Exit(-9, "no heartbeat for 60.0 s")) == "killed: no heartbeat for 60.0 s"


def test_backoff_doubles_to_its_bound_and_the_others_go_on() -> None:
    made = state()
    delays = []
    for i in range(3):
        decision = made.exited("grader-0", Exit(1), now_s=float(i))
        assert isinstance(decision, Restart)
        delays.append(decision.after_s)
        made.started("grader-0")
    assert delays == [0.5, 1.0, 2.0]
    assert made.phase("grader-1") == "running"


def test_restart_intensity_fails_the_run_and_names_the_first_cause() -> None:
    made = state()
    for process in ("grader-1", "grader-0", "grader-0"):
        assert isinstance(made.exited(process, Exit(7), now_s=1.0), Restart)
        made.started(process)
    decision = made.exited("grader-0", Exit(1), now_s=2.0)
    assert isinstance(decision, FailRun)
    assert "launch.max_restarts" in decision.reason
    assert "the first was grader-1 (exit code 7)" in decision.reason


def test_old_restarts_are_forgotten() -> None:
    made = state()
    for i in range(10):
        decision = made.exited("grader-0", Exit(1), now_s=i * 61.0)
        assert decision == Restart("grader-0", 0.5, 1)
        made.started("grader-0")


def test_an_end_that_was_asked_for_is_no_failure() -> None:
    made = state()
    made.stop("learner-0")
    assert made.exited("learner-0", Exit(-15), now_s=0) == Ignore()
    made.stop_all()
    assert made.exited("grader-0", Exit(1), now_s=0) == Ignore()
    assert made.living() == ["grader-1"]


def test_bad_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="max_restarts must be >= 0"):
        RestartPolicy(max_restarts=-1)
    with pytest.raises(ValueError, match="window_s"):
        RestartPolicy(window_s=math.nan)
    with pytest.raises(ValueError, match="drain_timeout_s"):
        SupervisorSettings(RestartPolicy(), drain_timeout_s=math.nan)


class Supervision(RuleBasedStateMachine):
    """Whatever dies when: no process runs twice, nothing is restarted while ending, and the intensity holds."""

    def __init__(self) -> None:
        super().__init__()
        self.made = state()
        self.now_s = 0.0
        self.restarts_s: list[float] = []
        self.running = {"grader-0", "grader-1", "learner-0"}
        self.waiting: set[str] = set()
        self.failed = False

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.running and not self.failed)
    @rule(data=st.data(), code=st.integers(-15, 3))
    def die(self, data: st.DataObject, code: int) -> None:
        process = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(process)
        decision = self.made.exited(process, Exit(code), self.now_s)
        if isinstance(decision, Restart):
            assert not self.made.stopping
            assert process != "learner-0"
            self.restarts_s.append(self.now_s)
            self.waiting.add(process)
        elif isinstance(decision, FailRun):
            recent = [t for t in self.restarts_s if self.now_s - t <= POLICY.window_s]
            assert process == "learner-0" or len(recent) == POLICY.max_restarts
            self.failed = True

    @precondition(lambda self: self.waiting and not self.made.stopping)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(process)
        self.made.started(process)
        self.running.add(process)

    @rule()
    def end(self) -> None:
        self.made.stop_all()

    @invariant()
    def the_living_are_those_that_run(self) -> None:
        assert set(self.made.living()) == self.running

    @invariant()
    def intensity(self) -> None:
        for start in self.restarts_s:
            assert sum(start <= t <= start + POLICY.window_s for t in self.restarts_s) <= POLICY.max_restarts


Supervision.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSupervision = Supervision.TestCase
