"""The rules of a collective round: examples, then random schedules of rounds and rollout together, with every promise
checked after every event."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.actors.parameter_server.group_round import (
    MAX_BLAMELESS,
    SENDER,
    Abort,
    Action,
    Failed,
    Gather,
    GroupRound,
    Groups,
    Join,
    Open,
    Over,
    Receive,
    Send,
    Staged,
)
from headrace.actors.parameter_server.rollout import Commit, Linger, Release, Rollout, Round, Served
from headrace.transport.weights import Manifest
from headrace.transport.weights.collective import HEADRACE, VLLM

A, B, C = "generator/0", "generator/1", "generator/2"


def manifest(version: int) -> Manifest:
    return Manifest(version, 10 * version, "nccl", "staged", 0, (), (), {})


def of(*members: str) -> dict[str, str]:
    return dict.fromkeys(members, "a")


def as_far_as_sending(round_: GroupRound, *members: str) -> list[Action]:
    """Through a new group."""
    for member in members:
        actions = round_.ready(member, 1)
    assert isinstance(actions[-1], Open)
    round_.opened()
    for member in (SENDER, *members):
        actions = round_.joined(member)
    return actions


def leave(round_: GroupRound, **progress: int | None) -> list[Action]:
    """Everybody's answer to the abort; the sender's name is "sender"."""
    actions: list[Action] = []
    for name, value in progress.items():
        member = SENDER if name == "sender" else f"generator/{'abc'.index(name)}"
        actions += round_.aborted(member, value)
    return actions


def test_two_members_with_several_workers_get_a_version_and_keep_their_group() -> None:
    groups = Groups("life")
    first = GroupRound(of(A, B), groups)
    assert first.begin() == [Gather(A), Gather(B)]
    assert first.ready(A, 2) == []
    assert first.ready(B, 1) == [Open("life-1", 4, ())]
    assert first.opened() == [
        Join(SENDER, "life-1", 0, 4, ()),
        Join(A, "life-1", 1, 4, ()),
        Join(B, "life-1", 3, 4, ()),
    ]
    assert first.joined(A) == first.joined(SENDER) == []
    assert first.joined(B) == [Send("life-1"), Receive(A, "life-1"), Receive(B, "life-1")]
    assert first.staged(B) == [Staged(B)], "it may commit at once"
    assert first.sent() == []
    assert first.staged(A) == [Staged(A), Over()]
    second = GroupRound(of(A, B), groups)
    second.begin()
    second.ready(A, 2)
    assert second.ready(B, 1) == [Send("life-1"), Receive(A, "life-1"), Receive(B, "life-1")]


def test_a_member_that_is_not_there_is_named_before_anybody_waits_for_it() -> None:
    """cases E94: NVIDIA/nccl#289, #1677. A host-side barrier before any collective."""
    round_ = GroupRound(of(A, B, C), Groups("life"))
    round_.begin()
    round_.ready(A, 1)
    assert round_.fault(B, "late", "no answer in 10 s") == [Failed(B, "no answer in 10 s")]
    assert round_.ready(C, 1) == [Open("life-1", 3, ())]


def test_one_that_serves_it_already_needs_no_bytes() -> None:
    round_ = GroupRound(of(A, B), Groups("life"))
    round_.begin()
    assert round_.ready(A, 1, has_it=True) == [Staged(A)]
    assert round_.ready(B, 1) == [Open("life-1", 2, ())]


def test_one_that_dies_in_the_middle_costs_the_others_a_new_group_and_no_more() -> None:
    groups = Groups("life")
    round_ = GroupRound(of(A, B), groups)
    round_.begin()
    as_far_as_sending(round_, A, B)
    assert round_.fault(B, "lost", "gone") == [Abort(SENDER, "life-1"), Abort(A, "life-1"), Abort(B, "life-1")]
    assert round_.fault(SENDER, "broken", "aborted") == round_.fault(A, "broken", "aborted") == []
    assert groups.names == ()
    assert leave(round_, sender=5, a=4, b=None) == [Failed(B, "gone"), Gather(A)]
    assert as_far_as_sending(round_, A) == [Send("life-2"), Receive(A, "life-2")]


def test_a_round_is_not_over_before_one_that_has_the_version_has_left_the_group() -> None:
    round_ = GroupRound(of(A), Groups("life"))
    round_.begin()
    as_far_as_sending(round_, A)
    round_.fault(SENDER, "refused", "no")
    assert round_.staged(A) == [Staged(A)]
    assert leave(round_, sender=2) == []
    assert leave(round_, a=5) == [Over()]


def test_the_one_that_came_least_far_is_named() -> None:
    round_ = GroupRound(of(A, B, C), Groups("life"))
    round_.begin()
    as_far_as_sending(round_, A, B, C)
    for member in (A, B, C, SENDER):
        round_.fault(member, "broken", "not done at the deadline")
    actions = leave(round_, sender=9, a=9, b=7, c=9)
    assert actions == [Failed(B, "it came least far (5 buckets); not done at the deadline"), Gather(A), Gather(C)]


def test_one_that_does_not_even_answer_is_waited_for_no_longer() -> None:
    """A stopped process: neither the receipt nor the abort is ever answered."""
    round_ = GroupRound(of(A, B), Groups("life"))
    round_.begin()
    as_far_as_sending(round_, A, B)
    round_.fault(A, "broken", "deadline")
    round_.fault(SENDER, "broken", "deadline")
    assert leave(round_, sender=4, a=4) == []
    assert leave(round_, b=None) == [Failed(B, "it does not answer"), Gather(A)]


def test_one_whose_worker_never_begins_to_join_is_named() -> None:
    round_ = GroupRound(of(A, B), Groups("life"))
    round_.begin()
    round_.ready(A, 1)
    round_.ready(B, 1)
    round_.opened()
    for member in (SENDER, A, B):
        round_.fault(member, "broken", "ranks [2] of 3 have not joined")
    actions = leave(round_, sender=1, a=1, b=0)
    assert [type(action) for action in actions] == [Failed, Gather]
    assert actions[0].member == B  # type: ignore[union-attr]


def test_one_that_has_it_all_is_out_of_danger() -> None:
    round_ = GroupRound(of(A, B), Groups("life"))
    round_.begin()
    as_far_as_sending(round_, A, B)
    round_.fault(B, "refused", "WeightsMismatch: bad checksums in 1 of 3")
    assert round_.staged(A) == [Staged(A)]
    assert round_.sent() == []
    assert leave(round_, sender=5, a=5, b=5) == [Failed(B, "WeightsMismatch: bad checksums in 1 of 3"), Over()]


def test_a_learner_that_is_gone_or_holds_the_version_no_more_ends_the_round() -> None:
    for kind in ("lost", "refused", "late"):
        round_ = GroupRound(of(A, B), Groups("life"))
        round_.begin()
        as_far_as_sending(round_, A, B)
        round_.fault(SENDER, kind, "why")  # type: ignore[arg-type]
        round_.fault(A, "broken", "aborted")
        round_.fault(B, "broken", "aborted")
        actions = leave(round_, sender=None, a=2, b=3)
        assert actions == [Failed(m, "the learner could not send: why") for m in (A, B)] + [Over()]


def test_where_nobody_is_to_blame_it_is_tried_again_a_few_times() -> None:
    round_ = GroupRound(of(A), Groups("life"))
    actions = round_.begin()
    for _ in range(MAX_BLAMELESS + 1):
        assert actions[-1] == Gather(A)
        as_far_as_sending(round_, A)
        round_.fault(SENDER, "broken", "NCCL")
        round_.fault(A, "broken", "NCCL")
        actions = leave(round_, sender=2, a=2)
    assert actions == [Failed(A, "the learner could not send: NCCL"), Over()]


def test_a_name_is_never_used_twice_and_two_groups_stay() -> None:
    groups = Groups("life")
    for members in (of(A), of(B), of(C)):
        groups.add(members, groups.new_name())
    assert groups.names == ("life-2", "life-3")
    assert groups.of(of(B)) == "life-2"
    assert groups.names == ("life-3", "life-2")
    groups.clear()
    assert groups.new_name() == "life-4"


def test_one_of_another_kind_has_a_group_of_its_own_after_the_others() -> None:
    groups = Groups("life")
    round_ = GroupRound(of(A, B, C), groups)
    round_.begin()
    round_.ready(B, 2, kind=VLLM)
    round_.ready(A, 1)
    assert round_.ready(C, 1) == [Open("life-1", 3, ())]
    round_.opened()
    for member in (SENDER, A, C):
        round_.joined(member)
    round_.sent()
    assert round_.staged(A) == [Staged(A)]
    assert round_.staged(C) == [Staged(C), Gather(B)]
    assert round_.ready(B, 2, kind=VLLM) == [Open("life-2", 3, ("life-1",), VLLM)]
    round_.opened()
    round_.joined(SENDER)
    assert round_.joined(B) == [Send("life-2"), Receive(B, "life-2")]
    round_.sent()
    assert round_.staged(B) == [Staged(B), Over()]
    assert groups.names == ("life-1", "life-2")


def test_one_of_another_kind_that_fails_costs_nobody_else_anything() -> None:
    groups = Groups("life")
    round_ = GroupRound(of(A, B), groups)
    round_.begin()
    round_.ready(A, 1, kind=VLLM)
    assert round_.ready(B, 1, kind=VLLM) == [Open("life-1", 2, (), VLLM)], "not even with its like"
    round_.opened()
    round_.joined(SENDER)
    assert round_.fault(A, "refused", "500") == [Abort(SENDER, "life-1"), Abort(A, "life-1")]
    round_.aborted(SENDER, 2)
    assert round_.aborted(A, 1) == [Failed(A, "500"), Gather(B)]
    assert as_far_as_sending(round_, B)[0] == Send("life-2")


def test_groups_of_one_stay_as_long_as_their_member() -> None:
    groups = Groups("life")
    groups.add(of(A), groups.new_name(), alone=True)
    for members in (of(B), of(C), of("evaluator/0")):
        groups.add(members, groups.new_name())
    assert groups.names == ("life-1", "life-3", "life-4")
    assert groups.kept_beside_a_new_one(of(B, C)) == ("life-1", "life-4")
    assert groups.kept_beside_a_new_one({A: "b"}, alone=True) == ("life-3", "life-4"), "its next life has another"
    groups.member_down(A)
    assert groups.names == ("life-3", "life-4")


class TestLinger:
    def started(self) -> Rollout:
        rollout = Rollout()
        for name in (A, B):
            rollout.member_up(name, "a", follows=True)
            rollout.committed(name, "a", 0, serving=0)
        assert rollout.publish(manifest(1)) == [Round(manifest(1), ((A, "a"), (B, "a")))]
        rollout.staged(A, "a", 1)
        rollout.staged(B, "a", 1)
        rollout.round_over()
        return rollout

    def test_one_that_is_ready_waits_for_the_others_that_are_loading(self) -> None:
        rollout = self.started()
        rollout.publish(manifest(2))
        assert rollout.committed(A, "a", 1, serving=1) == [Linger(1)]
        assert rollout.committed(B, "a", 1, serving=1)[0] == Round(manifest(2), ((A, "a"), (B, "a")))

    def test_but_not_for_long(self) -> None:
        rollout = self.started()
        rollout.committed(A, "a", 1, serving=1)
        assert Linger(1) in rollout.publish(manifest(2))
        assert rollout.linger_over(0) == []
        assert rollout.linger_over(1) == [Round(manifest(2), ((A, "a"),))]


class Schedules(RuleBasedStateMachine):
    """Members that come, go, and answer in any order and manner, one of which shares no group; a learner that fails
    too; versions at any time."""

    names = st.sampled_from([A, B, C, "evaluator/0"])

    def __init__(self) -> None:
        super().__init__()
        self.rollout = Rollout()
        self.groups = Groups("life")
        self.version = 0
        self.incarnations = 0
        self.alive: dict[str, str] = {}
        self.round: GroupRound | None = None
        self.members: dict[str, str] = {}
        self.target = 0
        self.tasks: list[Action] = []  # asked in the round, and not answered
        self.in_group: dict[str, set[str]] = {}
        self.dead_groups: set[str] = set()
        self.received: dict[str, set[int]] = {}
        self.commits: dict[str, Commit] = {}
        self.serves: dict[str, int] = {}
        self.served = [0]
        self.released: list[int] = []
        self.lingers: list[int] = []
        self.blameless = 0

    # --- what the actor does -----------------------------------------------------------------------------------------

    def take(self, actions: list[object]) -> None:
        for action in actions:
            match action:
                case Round():
                    assert self.round is None, "two rounds at once"
                    assert action.manifest.version not in self.released
                    self.round = GroupRound(dict(action.members), self.groups)
                    self.members, self.target = dict(action.members), action.manifest.version
                    self.play(self.round.begin())
                case Linger(number):
                    self.lingers.append(number)
                case Commit():
                    assert self.alive[action.member] == action.incarnation
                    assert action.member not in self.commits
                    assert action.version in self.received[action.member] | {0}, "commit of what was not verified"
                    self.commits[action.member] = action
                case Release(version):
                    assert version != self.target or self.round is None, "released while it is sent"
                    assert version not in {commit.version for commit in self.commits.values()}
                    self.released.append(version)
                case Served(version, _):
                    assert version > self.served[-1]
                    self.served.append(version)

    def play(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Staged(member):
                    self.take(self.rollout.staged(member, self.members[member], self.target))
                case Failed(member, reason):
                    self.take(self.rollout.failed(member, self.members[member], self.target, reason))
                case Over():
                    assert not self.tasks, "over, and something is under way"
                    self.round = None
                    self.take(self.rollout.round_over())
                case Abort(_, group):
                    self.dead_groups.add(group)
                    self.tasks.append(action)
                case Open(group):
                    assert group not in self.in_group, "a name was used twice"
                    self.in_group[group] = set()
                    self.tasks.append(action)
                case Send(group):
                    assert group not in self.dead_groups
                    assert SENDER in self.in_group[group], "sent before the sender had joined"
                    self.tasks.append(action)
                case Receive(member, group):
                    assert member in self.in_group[group], "received before it had joined"
                    assert C not in self.in_group[group] or self.in_group[group] == {SENDER, C}, "it shares no group"
                    self.tasks.append(action)
                case _:
                    self.tasks.append(action)

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(name=names)
    def up(self, name: str) -> None:
        if name in self.alive:
            self.down(name)
        self.incarnations += 1
        self.alive[name] = str(self.incarnations)
        self.received[name] = set()
        self.serves.pop(name, None)
        self.take(self.rollout.member_up(name, self.alive[name], follows=name != "evaluator/0"))

    @rule(name=names)
    def down(self, name: str) -> None:
        incarnation = self.alive.pop(name, "none")
        self.commits.pop(name, None)
        self.groups.member_down(name)
        self.take(self.rollout.member_down(name, incarnation))

    @rule()
    def publish(self) -> None:
        self.version += 1
        self.take(self.rollout.publish(manifest(self.version)))

    @rule()
    def sync(self) -> None:
        self.take(self.rollout.sync())

    @rule()
    def learner_restarts(self) -> None:
        self.groups.clear()

    @precondition(lambda self: self.lingers)
    @rule()
    def patience_ends(self) -> None:
        self.take(self.rollout.linger_over(self.lingers.pop(0)))

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]))
    def commit_answers(self, data: st.DataObject, ok: bool) -> None:
        self.answer_commit(data.draw(st.sampled_from(sorted(self.commits))), ok)

    def answer_commit(self, name: str, ok: bool) -> None:
        commit = self.commits.pop(name)
        if not ok:
            return self.take(self.rollout.failed(name, commit.incarnation, commit.version, "late"))
        assert commit.version >= self.serves.get(name, 0), "a member's version decreased"
        self.serves[name] = commit.version
        self.take(self.rollout.committed(name, commit.incarnation, commit.version, serving=commit.version))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), outcome=st.sampled_from([None, None, None, None, "refused", "late", "broken"]))
    def peer_answers(self, data: st.DataObject, outcome: str | None) -> None:
        number = data.draw(st.integers(0, len(self.tasks) - 1))
        self.answer(number, outcome, data.draw(st.integers(0, 4)))

    def answer(self, number: int, outcome: str | None, progress: int = 2) -> None:
        task, round_ = self.tasks.pop(number), self.round
        assert round_ is not None, "something is asked and no round is under way"
        name = getattr(task, "member", SENDER)
        if name != SENDER and self.alive.get(name) != self.members.get(name):
            outcome = "lost"
        match task:
            case Abort():
                # who does not answer that answers nothing else either, and is gone for this round
                self.tasks = [t for t in self.tasks if outcome is None or getattr(t, "member", SENDER) != name]
                return self.play(round_.aborted(name, progress if outcome is None else None))
            case _ if outcome is not None:
                return self.play(round_.fault(name, outcome, outcome))  # type: ignore[arg-type]
            case Gather():
                kind = VLLM if name == C else HEADRACE
                return self.play(round_.ready(name, 1 + len(self.members) % 2, kind=kind))
            case Open():
                return self.play(round_.opened())
            case Join(_, group):
                self.in_group[group].add(name)
                return self.play(round_.joined(name))
            case Send():
                return self.play(round_.sent())
            case Receive():
                self.received[name].add(self.target)
                return self.play(round_.staged(name))

    @invariant()
    def a_round_is_waiting_for_somebody_or_over(self) -> None:
        assert (self.round is None) == (not self.tasks)

    def teardown(self) -> None:
        """Once every answer has come, all live generators serve the newest version, but for those that failed it."""
        for _ in range(500):
            if self.tasks:
                self.answer(0, None)
            elif self.commits:
                self.answer_commit(next(iter(self.commits)), ok=True)
            else:
                break
        assert self.round is None
        assert not self.commits
        for name, serving in self.rollout.serving().items():
            if name.startswith("generator") and name not in self.rollout.evicted():
                assert serving == self.version


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
