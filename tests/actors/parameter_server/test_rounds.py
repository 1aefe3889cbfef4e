"""The rules of a collective broadcast: examples, then random schedules with every promise checked after every event."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.actors.parameter_server.rounds import (
    MAX_TRIES,
    SENDER,
    Abort,
    AskReady,
    Failed,
    Failure,
    Join,
    MakeGroup,
    Move,
    Rounds,
    Staged,
    Want,
)
from headrace.transport.weights import Manifest

A, B, C = "generator/0", "generator/1", "generator/2"


def manifest(version: int) -> Manifest:
    return Manifest(version, 10 * version, "nccl", "", 0, (), (), {})


def wants(version: int, *members: str) -> list[Want]:
    return [Want(member, "a", manifest(version)) for member in members]


def gather(rounds: Rounds, number: int, *members: str) -> list[object]:
    """All are ready, with one rank each: the actions after the last."""
    return [action for member in members for action in rounds.ready(number, member, 1)]


def until_sending(rounds: Rounds, number: int, *members: str) -> list[object]:
    """As far as the Moves, through a new group."""
    assert isinstance(gather(rounds, number, *members)[-1], MakeGroup)
    assert len(rounds.made(number, b"id")) == len(members) + 1
    return [action for member in (SENDER, *members) for action in rounds.joined(number, member)]


def test_two_members_get_a_version_in_one_group_and_the_next_one_in_the_same() -> None:
    rounds = Rounds("life")
    assert rounds.want(wants(1, A, B)) == [AskReady(1, A, "a"), AskReady(1, B, "a")]
    assert rounds.ready(1, A, 2) == []
    assert rounds.ready(1, B, 1) == [MakeGroup(1, "life-1")]
    assert rounds.made(1, b"id") == [
        Join(1, SENDER, "", "life-1", b"id", 0, 1, 4),
        Join(1, A, "a", "life-1", b"id", 1, 2, 4),
        Join(1, B, "a", "life-1", b"id", 3, 1, 4),
    ]
    assert [*rounds.joined(1, A), *rounds.joined(1, SENDER)] == []
    assert rounds.joined(1, B) == [Move(1, m, i, "life-1", manifest(1)) for m, i in ((SENDER, ""), (A, "a"), (B, "a"))]
    assert [*rounds.moved(1, SENDER), *rounds.moved(1, B)] == []
    assert rounds.moved(1, A) == [Staged(A, "a", 1), Staged(B, "a", 1)]
    rounds.want(wants(2, A, B))
    rounds.ready(2, A, 2)
    assert rounds.ready(2, B, 1) == [
        Move(2, m, i, "life-1", manifest(2)) for m, i in ((SENDER, ""), (A, "a"), (B, "a"))
    ]


def test_who_does_not_come_is_left_behind_before_any_group_is_made() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A, B))
    rounds.ready(1, A, 1)
    assert rounds.failed(1, B, Failure("silent", "no answer in 5 s")) == [
        Failed(B, "a", 1, "no answer in 5 s"),
        MakeGroup(1, "life-1"),
    ]


def test_a_late_joiner_goes_in_a_round_of_its_own() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A))
    assert rounds.want(wants(1, B)) == []
    until_sending(rounds, 1, A)
    rounds.moved(1, SENDER)
    assert rounds.moved(1, A) == [Staged(A, "a", 1), AskReady(2, B, "a")]
    assert rounds.ready(2, B, 1) == [Abort(SENDER, "", "life-1"), Abort(A, "a", "life-1"), MakeGroup(2, "life-2")]


def test_a_member_that_dies_in_the_middle_is_named_and_the_rest_go_on_without_it() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A, B))
    until_sending(rounds, 1, A, B)
    assert rounds.member_down(B, "a") == [Abort(m, i, "life-1") for m, i in ((SENDER, ""), (A, "a"), (B, "a"))]
    assert rounds.failed(1, SENDER, Failure("broken", "aborted", 2)) == []
    assert rounds.failed(1, A, Failure("broken", "aborted", 2)) == [
        Failed(B, "a", 1, "it is gone"),
        AskReady(2, A, "a"),
    ]
    assert gather(rounds, 2, A) == [MakeGroup(2, "life-2")]


def test_at_a_deadline_the_member_with_the_fewest_buckets_is_named() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A, B, C))
    until_sending(rounds, 1, A, B, C)
    rounds.failed(1, SENDER, Failure("broken", "deadline", 6))
    rounds.failed(1, A, Failure("broken", "deadline", 5))
    rounds.failed(1, C, Failure("broken", "deadline", 6))
    [failed, *others] = rounds.failed(1, B, Failure("broken", "deadline", 3))
    assert failed == Failed(B, "a", 1, "it had received 3 buckets, the fewest, when the group broke: deadline")
    assert others == [AskReady(2, A, "a"), AskReady(2, C, "a")]


def test_a_refusal_harms_nobody_else_and_the_group_stays() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A, B))
    until_sending(rounds, 1, A, B)
    assert rounds.failed(1, A, Failure("refused", "bad checksums in 1 of 6", 6)) == []
    rounds.moved(1, SENDER)
    assert rounds.moved(1, B) == [Failed(A, "a", 1, "bad checksums in 1 of 6"), Staged(B, "a", 1)]
    rounds.want(wants(2, A, B))
    assert isinstance(gather(rounds, 2, A, B)[0], Move)


@pytest.mark.parametrize("failure", [Failure("lost", "gone"), Failure("silent", "gone"), Failure("refused", "gone")])
def test_where_the_sender_is_at_fault_every_member_is_told_so(failure: Failure) -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A))
    gather(rounds, 1, A)
    assert rounds.failed(1, SENDER, failure) == [
        Abort(SENDER, "", "life-1"),
        Abort(A, "a", "life-1"),
        Failed(A, "a", 1, "the sender: gone"),
    ]


def test_a_sender_that_hangs_has_the_fewest() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A))
    until_sending(rounds, 1, A)
    rounds.failed(1, A, Failure("broken", "deadline", 3))
    [failed] = rounds.failed(1, SENDER, Failure("broken", "deadline", 2))
    assert failed == Failed(A, "a", 1, "the sender: it had sent 2 buckets when the group broke: deadline")


def test_where_nobody_can_be_named_all_try_again_a_few_times() -> None:
    rounds = Rounds("life")
    actions: Sequence[object] = rounds.want(wants(1, A, B))
    for number in range(1, MAX_TRIES + 1):
        assert actions[-2:] == [AskReady(number, A, "a"), AskReady(number, B, "a")]
        gather(rounds, number, A, B)
        rounds.made(number, b"id")
        for member in (SENDER, A):
            rounds.failed(number, member, Failure("broken", "NCCL"))
        actions = rounds.failed(number, B, Failure("broken", "NCCL"))
    assert actions == [Failed(m, "a", 1, f"{MAX_TRIES} groups broke; NCCL") for m in (A, B)]


def test_a_member_that_goes_between_two_rounds_takes_the_group_with_it() -> None:
    rounds = Rounds("life")
    rounds.want(wants(1, A))
    until_sending(rounds, 1, A)
    rounds.moved(1, SENDER)
    rounds.moved(1, A)
    assert rounds.member_down(A, "b") == []
    assert rounds.member_down(A, "a") == [Abort(SENDER, "", "life-1"), Abort(A, "a", "life-1")]
    assert rounds.sender_down() == []


class Schedules(RuleBasedStateMachine):
    """Members that come, go, and answer in any order and manner; a sender that may fail too."""

    names = st.sampled_from([A, B, C])

    def __init__(self) -> None:
        super().__init__()
        self.rounds = Rounds("life")
        self.version = 0
        self.incarnations = 0
        self.alive: dict[str, str] = {}
        self.wanted: dict[str, int] = {}
        self.tries: dict[str, int] = {}
        self.owed: dict[str, AskReady | MakeGroup | Join | Move] = {}
        self.ranks: dict[str, dict[str, set[int]]] = {}
        self.joined: dict[str, set[str]] = {}
        self.made: set[str] = set()
        self.aborted: set[str] = set()
        self.received: dict[str, set[int]] = {}

    def take(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Abort():
                    self.aborted.add(action.group)
                case Staged() | Failed():
                    if self.alive.get(action.member) != action.incarnation:
                        continue  # rollout has forgotten that incarnation
                    assert self.wanted.pop(action.member) == action.version, "an end that nobody waits for"
                    if isinstance(action, Staged):
                        assert action.version in self.received[action.member], "staged without the bytes"
                case AskReady() | MakeGroup() | Join() | Move():
                    name = SENDER if isinstance(action, MakeGroup) else action.member
                    assert name not in self.owed, "two asks at once"
                    self.owed[name] = action
                    self.check(action)

    def check(self, action: AskReady | MakeGroup | Join | Move) -> None:
        assert len({ask.round for ask in self.owed.values()}) == 1, "two rounds at once"
        if isinstance(action, AskReady):
            self.tries[action.member] = self.tries.get(action.member, 0) + 1
            assert self.tries[action.member] <= MAX_TRIES
            return
        assert action.group not in self.aborted, "asked in a group that was given up"
        if isinstance(action, MakeGroup):
            assert action.group not in self.made, "a name was used twice"
            self.made.add(action.group)
        elif isinstance(action, Join):
            mine = set(range(action.rank, action.rank + action.num_ranks))
            taken = self.ranks.setdefault(action.group, {})
            assert mine <= set(range(action.world_size)), "a rank beyond the world"
            assert not any(mine & theirs for theirs in taken.values()), "a rank of two members"
            taken[action.member] = mine
        else:
            assert self.joined[action.group] == self.ranks[action.group].keys(), "sent before all had joined"

    @rule(names=st.sets(names, min_size=1))
    def publish(self, names: set[str]) -> None:
        """rollout: every idle member wants the newest."""
        self.version += 1
        wanting = []
        for name in sorted(names):
            if name not in self.alive:
                self.incarnations += 1
                self.alive[name] = str(self.incarnations)
            if name not in self.wanted:
                self.wanted[name] = self.version
                self.tries[name] = 0
                self.received.setdefault(name, set()).discard(self.version)
                wanting.append(Want(name, self.alive[name], manifest(self.version)))
        self.take(self.rounds.want(wanting))

    @rule(name=names)
    def down(self, name: str) -> None:
        incarnation = self.alive.pop(name, "none")
        self.wanted.pop(name, None)
        self.received.pop(name, None)
        if self.owed.get(name) is not None:
            del self.owed[name]
        self.take(self.rounds.member_down(name, incarnation))

    @rule()
    def sender_down(self) -> None:
        self.owed.pop(SENDER, None)
        self.take(self.rounds.sender_down())

    @precondition(lambda self: self.owed)
    @rule(
        data=st.data(),
        kind=st.sampled_from([None, None, None, None, "refused", "lost", "silent", "broken"]),
        num_buckets=st.integers(0, 3),
    )
    def answer(self, data: st.DataObject, kind: str | None, num_buckets: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.owed)))
        self.say(name, kind, num_buckets)

    def say(self, name: str, kind: str | None, num_buckets: int = 0) -> None:
        ask = self.owed.pop(name)
        if kind is not None:
            self.take(self.rounds.failed(ask.round, name, Failure(kind, "why", num_buckets)))  # type: ignore[arg-type]
        elif isinstance(ask, AskReady):
            self.take(self.rounds.ready(ask.round, name, 1 + len(name) % 3))
        elif isinstance(ask, MakeGroup):
            self.take(self.rounds.made(ask.round, b"id"))
        elif isinstance(ask, Join):
            self.joined.setdefault(ask.group, set()).add(name)
            self.take(self.rounds.joined(ask.round, name))
        else:
            if name in self.received:
                self.received[name].add(ask.manifest.version)
            self.take(self.rounds.moved(ask.round, name))

    @rule(name=names, number=st.integers(0, 50))
    def stray_answers_change_nothing(self, name: str, number: int) -> None:
        if any(ask.round == number for ask in self.owed.values()):
            return
        assert self.rounds.ready(number, name, 1) == []
        assert self.rounds.joined(number, name) == []
        assert self.rounds.moved(number, name) == []
        assert self.rounds.made(number, b"other") == []
        assert self.rounds.failed(number, name, Failure("lost", "stray")) == []

    @invariant()
    def while_somebody_wants_something_somebody_is_asked(self) -> None:
        assert self.owed or not self.wanted

    def teardown(self) -> None:
        """Once every answer has come, every want has ended."""
        for _ in range(200):
            if not self.owed:
                break
            self.say(next(iter(self.owed)), None)
        assert not self.owed
        assert not self.wanted


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
