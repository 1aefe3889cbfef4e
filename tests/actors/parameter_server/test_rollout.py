"""The rules of versions: examples, then random schedules with every promise checked after every event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.actors.parameter_server.rollout import Commit, Evicted, Release, Rollout, Served, Stage, Synced
from headrace.transport.weights import Manifest, Probe


def manifest(version: int) -> Manifest:
    return Manifest(version, 10 * version, "shm", f"segment-{version}", 0, (), (), {})


def test_the_newest_may_be_said_twice_even_where_its_probe_holds_what_equals_nothing() -> None:
    rollout = Rollout()
    for _ in range(2):
        rollout.publish(replace(manifest(1), probe=Probe((1, 2), (float("nan"),), 0.1)))
    with pytest.raises(ValueError, match="not above 1"):
        rollout.publish(replace(manifest(1), location="another"))


def test_a_version_goes_staged_committed_served() -> None:
    rollout = Rollout()
    assert rollout.member_up("generator/0", "a", follows=True) == [Commit("generator/0", "a", 0)]
    assert rollout.committed("generator/0", "a", 0, serving=0) == []
    assert rollout.publish(manifest(1)) == [Stage("generator/0", "a", manifest(1))]
    assert rollout.staged("generator/0", "a", 1) == [Commit("generator/0", "a", 1)]
    assert rollout.committed("generator/0", "a", 1, serving=1) == [Served(1, 10)]
    assert rollout.buffers == {1}


def test_without_generators_the_newest_waits_and_older_ones_are_released() -> None:
    rollout = Rollout()
    assert rollout.publish(manifest(1)) == []
    assert rollout.publish(manifest(2)) == [Release(1)]
    assert rollout.sync() == [Synced(2, 20, ())]
    assert rollout.member_up("generator/0", "a", follows=True) == [Stage("generator/0", "a", manifest(2))]


def test_five_versions_while_a_generator_stands_still() -> None:
    """cases E91: PrimeIntellect-ai/prime-rl#1857. A generator paused between "seen" and "load" keeps its buffer and
    goes to the newest afterwards; what lies between is released at once."""
    rollout = Rollout()
    rollout.member_up("generator/0", "a", follows=True)
    rollout.committed("generator/0", "a", 0, serving=0)
    rollout.publish(manifest(1))
    released = [action for version in range(2, 7) for action in rollout.publish(manifest(version))]
    assert released == [Release(2), Release(3), Release(4), Release(5)]
    assert rollout.buffers == {1, 6}
    rollout.staged("generator/0", "a", 1)
    after = rollout.committed("generator/0", "a", 1, serving=1)
    assert after == [Stage("generator/0", "a", manifest(6)), Served(1, 10), Release(1)]


def test_a_slow_generator_is_evicted_and_may_rejoin() -> None:
    rollout = Rollout()
    for name in ("generator/0", "generator/1"):
        rollout.member_up(name, "a", follows=True)
        rollout.committed(name, "a", 0, serving=0)
    rollout.publish(manifest(1))
    rollout.staged("generator/0", "a", 1)
    assert rollout.committed("generator/0", "a", 1, serving=1) == []
    assert rollout.failed("generator/1", "a", 1, "late") == [Evicted("generator/1", 1, "late"), Served(1, 10)]
    assert rollout.evicted() == ["generator/1"]
    assert Stage("generator/1", "a", manifest(2)) in rollout.publish(manifest(2))
    rollout.staged("generator/1", "a", 2)
    rollout.committed("generator/1", "a", 2, serving=2)
    assert rollout.evicted() == []


def test_a_version_is_never_reused() -> None:
    rollout = Rollout()
    rollout.publish(manifest(3))
    assert rollout.publish(manifest(3)) == []
    for other in (replace(manifest(3), step=31), manifest(2)):
        with pytest.raises(ValueError, match="not above 3"):
            rollout.publish(other)


def test_evaluators_hold_their_version_until_the_next_sync() -> None:
    rollout = Rollout()
    rollout.member_up("evaluator/0", "a", follows=False)
    assert rollout.publish(manifest(1)) == []
    assert rollout.sync() == [Stage("evaluator/0", "a", manifest(1))]
    assert rollout.publish(manifest(2)) == []
    rollout.staged("evaluator/0", "a", 1)
    assert rollout.committed("evaluator/0", "a", 1, serving=1) == [Synced(1, 10, ()), Release(1)]
    assert rollout.publish(manifest(3)) == [Release(2)]
    assert rollout.serving() == {"evaluator/0": 1}


def test_an_evaluator_that_fails_is_named() -> None:
    rollout = Rollout()
    rollout.member_up("evaluator/0", "a", follows=False)
    rollout.publish(manifest(1))
    rollout.sync()
    assert rollout.failed("evaluator/0", "a", 1, "bad") == [
        Evicted("evaluator/0", 1, "bad"),
        Synced(1, 10, ("evaluator/0",)),
    ]
    assert rollout.sync() == [Stage("evaluator/0", "a", manifest(1))]


def test_a_restarted_server_learns_from_the_answers_what_is_served() -> None:
    rollout = Rollout()
    rollout.member_up("generator/0", "a", follows=True)
    rollout.committed("generator/0", "a", 0, serving=7)
    assert rollout.member_up("generator/1", "b", follows=True) == []
    assert len(rollout.publish(manifest(8))) == 2


def test_a_withdrawn_version_is_released_when_nobody_is_under_way_and_begun_by_nobody() -> None:
    """weights.staging=false: the learner has one buffer."""
    rollout = Rollout()
    rollout.member_up("generator/0", "a", follows=True)
    rollout.committed("generator/0", "a", 0, serving=0)
    assert rollout.withdraw() == []  # nothing was published
    assert rollout.publish(manifest(1)) == [Stage("generator/0", "a", manifest(1))]
    assert rollout.withdraw() == []
    assert rollout.member_up("generator/1", "b", follows=True) == []
    assert rollout.staged("generator/0", "a", 1) == [Commit("generator/0", "a", 1)]
    assert rollout.committed("generator/0", "a", 1, serving=1) == [Served(1, 10), Release(1)]
    assert rollout.publish(manifest(2)) == [
        Stage(name, i, manifest(2)) for name, i in (("generator/0", "a"), ("generator/1", "b"))
    ]


def test_evaluators_asked_for_a_withdrawn_version_get_the_next() -> None:
    rollout = Rollout()
    rollout.member_up("evaluator/0", "a", follows=False)
    rollout.publish(manifest(1))
    assert rollout.withdraw() == [Release(1)]
    assert rollout.sync() == []
    assert rollout.publish(manifest(2)) == [Stage("evaluator/0", "a", manifest(2))]
    assert rollout.withdraw() == []  # the evaluator reads it
    rollout.staged("evaluator/0", "a", 2)
    assert rollout.committed("evaluator/0", "a", 2, serving=2) == [Synced(2, 20, ()), Release(2)]


class Schedules(RuleBasedStateMachine):
    """Generators and evaluators that come, go, answer late, fail; a learner that publishes at any time."""

    names = st.sampled_from(["generator/0", "generator/1", "generator/2", "evaluator/0", "evaluator/1"])

    def __init__(self) -> None:
        super().__init__()
        self.rollout = Rollout()
        self.version = 0
        self.incarnations = 0
        self.alive: dict[str, str] = {}
        self.owed: dict[str, Stage | Commit] = {}
        self.verified: dict[str, set[int]] = {}
        self.serves: dict[str, int] = {}
        self.released: list[int] = []
        self.served: list[int] = [0]
        self.syncing = False
        self.withdrawn = False

    def take(self, actions: list[object]) -> None:
        for action in actions:
            if isinstance(action, (Stage, Commit)):
                assert self.alive.get(action.member) == action.incarnation, "asked of one that is gone"
                assert action.member not in self.owed, "two phases at once on one member"
                self.owed[action.member] = action
                if isinstance(action, Stage):
                    assert action.manifest.version not in self.released, "staged from a released buffer"
                else:
                    assert action.version in self.verified[action.member] | {0}, "commit of what was not verified"
            elif isinstance(action, Release):
                assert action.version not in self.released, "released twice"
                assert action.version not in self.reading(), "released while read"
                self.released.append(action.version)
            elif isinstance(action, Served):
                assert action.version > self.served[-1]
                self.served.append(action.version)
            elif isinstance(action, Synced):
                assert self.syncing
                self.syncing = False

    def reading(self) -> set[int]:
        return {
            action.manifest.version if isinstance(action, Stage) else action.version for action in self.owed.values()
        }

    @rule(name=names)
    def up(self, name: str) -> None:
        if name in self.alive:
            self.down(name)
        self.incarnations += 1
        self.alive[name] = str(self.incarnations)
        self.verified[name] = set()
        self.serves.pop(name, None)
        self.take(self.rollout.member_up(name, self.alive[name], follows=name.startswith("generator")))

    @rule(name=names)
    def down(self, name: str) -> None:
        incarnation = self.alive.pop(name, "none")
        self.owed.pop(name, None)
        self.take(self.rollout.member_down(name, incarnation))

    @rule()
    def withdraw(self) -> None:
        self.withdrawn = self.version > 0
        self.take(self.rollout.withdraw())

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.withdrawn = False
        self.take(self.rollout.publish(manifest(self.version)))

    @precondition(lambda self: not self.syncing)
    @rule()
    def sync(self) -> None:
        self.syncing = True
        self.take(self.rollout.sync())

    @precondition(lambda self: self.owed)
    @rule(data=st.data(), ok=st.sampled_from([True, True, True, False]))
    def answer(self, data: st.DataObject, ok: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.owed)))
        action = self.owed.pop(name)
        version = action.manifest.version if isinstance(action, Stage) else action.version
        if not ok:
            self.take(self.rollout.failed(name, action.incarnation, version, "late"))
        elif isinstance(action, Stage):
            self.verified[name].add(version)
            self.take(self.rollout.staged(name, action.incarnation, version))
        else:
            assert version >= self.serves.get(name, 0), "a member's version decreased"
            self.serves[name] = version
            self.take(self.rollout.committed(name, action.incarnation, version, serving=version))

    @rule(name=names, version=st.integers(0, 5))
    def stray_answers_change_nothing(self, name: str, version: int) -> None:
        assert self.rollout.staged(name, "stranger", version) == []
        assert self.rollout.committed(name, "stranger", version, serving=version) == []
        assert self.rollout.failed(name, "stranger", version, "late") == []

    @invariant()
    def every_buffer_is_either_needed_or_released(self) -> None:
        held = set(range(1, self.version + 1)) - set(self.released)
        assert held == self.rollout.buffers
        needed = ((set() if self.withdrawn else {self.version}) | self.reading()) - {0}
        assert needed <= held
        if not self.syncing:
            assert held == needed

    def teardown(self) -> None:
        """Once every answer has come, all live generators serve the newest and one buffer is left."""
        if self.withdrawn:
            self.publish()
        for _ in range(200):
            if not self.owed:
                break
            name, action = next(iter(self.owed.items()))
            del self.owed[name]
            if isinstance(action, Stage):
                self.verified[name].add(action.manifest.version)
                self.take(self.rollout.staged(name, action.incarnation, action.manifest.version))
            else:
                self.take(self.rollout.committed(name, action.incarnation, action.version, serving=action.version))
        assert not self.owed
        assert not self.syncing
        assert self.rollout.buffers == ({self.version} - {0})
        for name, serving in self.rollout.serving().items():
            if name.startswith("generator") and name not in self.rollout.evicted():
                assert serving == self.version


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
