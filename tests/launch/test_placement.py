"""Placement after the loss of nodes: nobody twice, no device slot given twice, nobody homeless while there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.launch.placement import Bonds, Placement
from headrace.launch.topology import ProcessPlan

DEVICES = {"a": ("0", "1"), "b": ("0",), "spare": ("7", "8")}


def plan(name: str, node: str, *devices: str) -> ProcessPlan:
    role = name.partition("-")[0]
    return ProcessPlan(name, node, role, (name.replace("-", "/"),), devices)


PROCESSES = [
    plan("dispatcher-0", "a"),
    plan("generator-0", "a", "0"),
    plan("generator-1", "b", "0"),
    plan("environment-0", "b"),
    plan("learner-0", "a", "1"),
]


BONDS = Bonds(
    together=frozenset(("learner", "parameter_server")),
    readers=frozenset(("generator", "evaluator")),
    owners=frozenset(("learner",)),
    carriers=frozenset(("relay",)),
)


def placement() -> Placement:
    return Placement(PROCESSES, DEVICES)


def places(made: Placement) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {p.name: (p.node, p.devices) for node in made.nodes for p in made.on(node)}


def test_what_needs_no_device_goes_to_the_emptiest_node_and_what_does_to_free_slots() -> None:
    made = placement()
    assert [p.name for p in made.lose("a")] == ["dispatcher-0", "generator-0", "learner-0"]
    # the roles that have nobody left come before the second generator
    assert [p.name for p in made.settle()] == ["dispatcher-0", "learner-0", "generator-0"]
    assert places(made) == {
        "dispatcher-0": ("spare", ()),
        "learner-0": ("spare", ("7",)),
        "generator-0": ("spare", ("8",)),
        "generator-1": ("b", ("0",)),
        "environment-0": ("b", ()),
    }


def test_those_that_share_a_slot_move_together() -> None:
    both = [
        replace(plan("learner-0", "a", "0"), shared=True),
        replace(plan("generator-0", "a", "0"), shared=True),
        plan("judge-0", "a", "1"),
    ]
    made = Placement(both, {"a": ("0", "1"), "b": ("5",)})
    assert made.free_slots("a") == []
    made.lose("a")
    assert [(p.name, p.devices) for p in made.settle()] == [("learner-0", ("5",)), ("generator-0", ("5",))]
    assert [p.name for p in made.homeless] == ["judge-0"]
    with pytest.raises(ValueError, match="not free"):
        made.add(plan("judge-1", "b", "5"))
    made.add(replace(plan("generator-1", "b", "5"), shared=True))


def test_who_reads_anothers_memory_moves_with_it_to_where_both_have_room() -> None:
    """The server needs no device, and the emptiest node has none for the learner."""
    processes = [plan("parameter_server-0", "a"), plan("learner-0", "a", "0"), plan("generator-0", "b", "0")]
    devices = {"a": ("0",), "b": ("0", "1"), "empty": ()}
    apart, made = Placement(processes, devices), Placement(processes, devices, BONDS)
    for one in (apart, made):
        one.lose("a")
        one.settle()
    assert places(apart)["parameter_server-0"] == ("empty", ())
    assert places(made)["parameter_server-0"] == ("b", ())
    assert places(made)["learner-0"] == ("b", ("1",))


def test_who_lost_its_fellow_follows_it_later() -> None:
    processes = [plan("parameter_server-0", "a"), plan("learner-0", "a", "0")]
    made = Placement(processes, {"a": ("0",), "empty": ()}, BONDS)
    made.lose("a")
    assert made.settle() == []
    made.restore("a")
    assert {p.name for p in made.settle()} == {"learner-0", "parameter_server-0"}


def test_who_moves_together_needs_room_for_all_at_once() -> None:
    processes = [plan("parameter_server-0", "a", "0"), plan("learner-0", "a", "1")]
    made = Placement(processes, {"a": ("0", "1"), "b": ("0",)}, BONDS)
    made.lose("a")
    assert made.settle() == []
    made.restore("a")
    assert len(made.settle()) == 2


def test_readers_go_only_where_they_are_served() -> None:
    """The node of owner and reader is lost and comes back; its reader would find nothing to read there."""
    processes = [plan("parameter_server-0", "a"), plan("learner-0", "a", "0"), plan("generator-0", "a", "1"),
                 plan("relay-0", "b"), plan("generator-1", "b", "0")]  # fmt: skip
    made = Placement(processes, {"a": ("0", "1"), "b": ("0", "1")}, BONDS)
    made.lose("a")
    made.settle()
    assert places(made)["learner-0"] == ("b", ("1",))
    made.restore("a")
    assert made.settle() == []
    assert [p.name for p in made.homeless] == ["generator-0"]
    assert made.unneeded == []
    made.remove("generator-1")
    assert [(p.name, p.node) for p in made.settle()] == [("generator-0", "b")]


def test_a_carrier_goes_where_the_most_readers_find_room() -> None:
    processes = [plan("parameter_server-0", "t"), plan("learner-0", "t"), plan("relay-0", "r"),
                 plan("generator-0", "r", "0"), plan("generator-1", "r", "1")]  # fmt: skip
    made = Placement(processes, {"t": (), "r": ("0", "1"), "empty": (), "s": ("0",), "u": ("5", "6")}, BONDS)
    made.lose("r")
    assert [(p.name, p.node) for p in made.settle()] == [("relay-0", "u"), ("generator-0", "u"), ("generator-1", "u")]


def test_a_carrier_that_nobody_needs_has_no_place_and_is_not_missed() -> None:
    processes = [
        plan("parameter_server-0", "t"),
        plan("learner-0", "t"),
        plan("relay-0", "r"),
        plan("generator-0", "r"),
    ]
    made = Placement(processes, {"t": (), "r": ()}, BONDS)
    made.lose("r")
    assert [(p.name, p.node) for p in made.settle()] == [("generator-0", "t")]
    assert [p.name for p in made.unneeded] == ["relay-0"]
    made.restore("r")
    assert made.settle() == []
    made.lose("t")
    made.settle()
    assert {p.node for p in made.plans if p.role != "relay"} == {"r"}
    assert [p.name for p in made.homeless] == ["relay-0"], "the owner came along"


def test_what_finds_no_slot_waits_until_one_is_back() -> None:
    made = placement()
    made.lose("spare")
    made.lose("a")
    assert [p.name for p in made.settle()] == ["dispatcher-0"]
    assert [p.name for p in made.homeless] == ["generator-0", "learner-0"]
    assert made.roles_missing() == {"learner"}
    assert made.settle() == []
    made.restore("spare")
    assert [(p.name, p.devices) for p in made.settle()] == [("learner-0", ("7",)), ("generator-0", ("8",))]
    assert made.homeless == []


def test_without_a_node_everybody_is_homeless() -> None:
    made = placement()
    for node in DEVICES:
        made.lose(node)
    assert made.settle() == []
    assert made.roles_missing() == {"dispatcher", "generator", "environment", "learner"}


def test_what_joins_takes_free_slots_and_what_leaves_keeps_its_own_to_its_end() -> None:
    made = placement()
    for taken in (plan("generator-2", "b", "0"), plan("generator-0", "spare"), plan("generator-2", "nowhere")):
        with pytest.raises(ValueError, match="cannot join"):
            made.add(taken)
    made.leave("generator-1")
    assert made.free_slots("b") == []
    made.remove("generator-1")
    made.add(plan("generator-2", "b", "0"))
    assert places(made)["generator-2"] == ("b", ("0",))


def test_what_was_leaving_goes_with_its_node() -> None:
    made = placement()
    made.leave("generator-0")
    assert "generator-0" in [p.name for p in made.lose("a")], "its end is told"
    made.settle()
    assert "generator-0" not in places(made)
    assert "generator-0" not in [p.name for p in made.homeless]


class Nodes(RuleBasedStateMachine):
    """Nodes are lost and come back, processes join and leave, in any order."""

    bonds = Bonds()
    begin_with = PROCESSES

    def __init__(self) -> None:
        super().__init__()
        self.made = Placement(self.begin_with, DEVICES, self.bonds)
        self.lost: set[str] = set()
        self.processes = {p.name: p for p in self.begin_with}
        self.leaving: set[str] = set()
        self.num_joined = 0
        self.relay_left = False

    @precondition(lambda self: len(self.lost) < len(DEVICES))
    @rule(data=st.data(), settle=st.booleans())
    def lose(self, data: st.DataObject, settle: bool) -> None:
        node = data.draw(st.sampled_from(sorted(set(DEVICES) - self.lost)))
        self.lost.add(node)
        before = {p.name for p in self.made.on(node)}
        assert {p.name for p in self.made.lose(node)} == before
        for name in before & self.leaving:
            self.ended(name)
        if settle:
            self.settle()

    @precondition(lambda self: len(self.lost) < len(DEVICES))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        self.join_on(data.draw(st.sampled_from(sorted(set(DEVICES) - self.lost))))

    def join_on(self, node: str) -> None:
        self.num_joined += 1
        joiner = plan(f"generator-{self.num_joined + 1}", node, *self.made.free_slots(node)[:1])
        self.made.add(joiner)
        self.processes[joiner.name] = joiner

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), ended=st.booleans())
    def leave(self, data: st.DataObject, ended: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.processes)))
        if name in [p.name for p in self.made.homeless] or ended:
            self.made.remove(name)
            self.ended(name)
        else:
            self.made.leave(name)
            self.leaving.add(name)

    def ended(self, name: str) -> None:
        self.relay_left |= self.processes[name].role in ("relay", "learner")
        del self.processes[name]
        self.leaving.discard(name)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.lost)))
        self.lost.discard(node)
        self.made.restore(node)
        assert self.made.on(node) == []

    @rule()
    def settle(self) -> None:
        self.made.settle()
        for homeless in self.made.homeless:
            for node in self.made.nodes:
                assert len(self.made.free_slots(node)) < len(homeless.devices) or not self.may_be(homeless, node)

    def may_be(self, process: ProcessPlan, node: str) -> bool:
        return True

    @invariant()
    def everybody_is_in_one_place_or_none(self) -> None:
        placed = [p.name for node in self.made.nodes for p in self.made.on(node)]
        homeless = [p.name for p in self.made.homeless]
        assert sorted(placed + homeless) == sorted(self.processes)
        assert not set(homeless) & self.leaving

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        for node in self.made.nodes:
            given = [device for p in self.made.on(node) for device in p.devices]
            assert len(given) == len(set(given))
            assert set(given) <= set(DEVICES[node])

    @invariant()
    def everybody_keeps_the_number_of_devices(self) -> None:
        for process in self.processes.values():
            assert len(self.made.plan(process.name).devices) == len(process.devices)


Nodes.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestNodes = Nodes.TestCase


class BoundNodes(Nodes):
    """The same where weights travel by relays. Engines join where a relay or the learner is."""

    bonds = BONDS
    begin_with: ClassVar = [*PROCESSES, plan("parameter_server-0", "a"), plan("relay-0", "b"), plan("evaluator-0", "b")]

    def may_be(self, process: ProcessPlan, node: str) -> bool:
        if process.role in ("generator", "evaluator"):
            return BONDS.serves(self.made.on(node))
        if process.role == "relay":  # it is wanted where an engine has room
            engines = [p for p in self.made.homeless if p.role in BONDS.readers]
            free = len(self.made.free_slots(node))
            return not BONDS.serves(self.made.on(node)) and any(free >= len(p.devices) for p in engines)
        if process.role in BONDS.together:  # both, or to where the other is
            fellows = [p for p in self.made.plans if p.role in BONDS.together and p.name in self.processes]
            homes = {p.node for p in fellows if p not in self.made.homeless}
            needed = sum(len(p.devices) for p in fellows if p in self.made.homeless)
            return (not homes or node in homes) and needed <= len(self.made.free_slots(node))
        return True

    @precondition(lambda self: any(BONDS.serves(self.made.on(n)) for n in self.made.nodes))
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from([n for n in self.made.nodes if BONDS.serves(self.made.on(n))]))
        self.join_on(node)

    @invariant()
    def owner_and_server_are_on_one_node(self) -> None:
        placed = [p for node in self.made.nodes for p in self.made.on(node)]
        assert len({p.node for p in placed if p.role in BONDS.together}) <= 1

    @invariant()
    def engines_are_served_where_they_come_to(self) -> None:
        """Unless the relay that was there has left, which scaling refuses."""
        for node in self.made.nodes:
            if any(p.role in BONDS.readers for p in self.made.on(node)) and not self.relay_left:
                assert BONDS.serves(self.made.on(node))


BoundNodes.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestBoundNodes = BoundNodes.TestCase
