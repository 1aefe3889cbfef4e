"""What a change of counts comes to: which processes join or leave, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.launch.scaling import CannotScale, Steps, Wish, parse_wish, plan_steps
from headrace.launch.topology import ProcessPlan, plan_topology, roles_of

TARGET = {"_target_": "a.B"}
SINGLE = {role: {"count": 1} for role in ("dispatcher", "learner", "parameter_server", "monitor")}


def config_of(**nodes: dict[str, Any]) -> dict[str, Any]:
    """A training run; each node is given as `actors`, or whole with its devices."""
    whole = {name: node if "actors" in node else {"actors": node} for name, node in nodes.items()}
    first = next(iter(whole.values()))
    first["actors"] = SINGLE | {r: {"count": 1} for r in ("grader", "environment", "generator")} | first["actors"]
    roles = {role for node in whole.values() for role in node["actors"]}
    return {"topology": {"nodes": whole}, **dict.fromkeys(roles, TARGET)}


def processes_of(config: dict[str, Any]) -> tuple[ProcessPlan, ...]:
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems, problems
    return processes


def steps(
    config: dict[str, Any],
    wish: Wish,
    *,
    processes: Sequence[ProcessPlan] | None = None,
    next_index: int | None = None,
    free: dict[str, list[str]] | None = None,
) -> Steps:
    processes = processes_of(config) if processes is None else processes
    used = [int(name.partition("/")[2]) for p in processes if p.role == wish.role for name in p.actors]
    index = max(used, default=-1) + 1 if next_index is None else next_index
    slots = {node: [] for node in config["topology"]["nodes"]} | (free or {})
    return plan_steps(config, processes, slots, wish, next_index=index)


class TestJoining:
    def test_indices_go_upward_and_are_never_used_twice(self) -> None:
        config = config_of(n={})
        assert [p.name for p in steps(config, Wish("generator", 3)).joining] == ["generator-1", "generator-2"]
        joining = steps(config, Wish("generator", 2), next_index=5).joining
        assert [p.actors for p in joining] == [("generator/5",)]

    def test_processes_are_cut_as_at_the_start(self) -> None:
        line = {"count": 2, "per_process": 2, "devices": 1, "threads": 3, "environment": {"A": 1}}
        config = config_of(n={"devices": [0, 1, 7], "actors": {"generator": line}})
        joining = steps(config, Wish("generator", 5), free={"n": ["1", "7"]}).joining
        assert [(p.name, p.actors, p.devices) for p in joining] == [
            ("generator-2-3", ("generator/2", "generator/3"), ("1",)),
            ("generator-4", ("generator/4",), ("7",)),
        ]
        assert {(p.threads, tuple(p.environment.items())) for p in joining} == {(3, (("A", "1"),))}

    def test_a_node_without_free_devices_is_named(self) -> None:
        config = config_of(n={"devices": [0, 1], "actors": {"generator": {"count": 1, "devices": 1}}})
        assert steps(config, Wish("generator", 2), free={"n": ["1"]}).joining[0].devices == ("1",)
        with pytest.raises(CannotScale, match=r"no free devices on node n for 1 more: 1 are needed, 0 of its 2") as no:
            steps(config, Wish("generator", 2), free={"n": []})
        assert no.value.exit_code == 2

    def test_where_a_role_is_on_two_nodes_the_user_says_which(self) -> None:
        config = config_of(a={}, b={"generator": {"count": 2, "threads": 5}})
        with pytest.raises(CannotScale, match="generator runs on 2 nodes; say where with --node; allowed: a, b"):
            steps(config, Wish("generator", 4))
        (joining,) = steps(config, Wish("generator", 4, "b")).joining
        assert (joining.node, joining.threads, joining.actors) == ("b", 5, ("generator/3",))
        assert steps(config, Wish("environment", 2)).joining[0].node == "a"

    def test_a_node_that_never_had_the_role_gets_the_line_of_one_that_has(self) -> None:
        config = config_of(a={"environment": {"count": 1, "threads": 4}}, b={"generator": {"count": 1}})
        (joining,) = steps(config, Wish("environment", 2, "b")).joining
        assert (joining.node, joining.threads) == ("b", 4)

    def test_engines_join_where_weights_come_to(self) -> None:
        config = config_of(a={}, b={"relay": {"count": 1}}, c={"grader": {"count": 1}})
        config["weights"] = {"transport": "stream"}
        assert steps(config, Wish("generator", 2, "b")).joining[0].node == "b"
        with pytest.raises(CannotScale, match=r"topology.nodes.c.actors.relay.count: got 0"):
            steps(config, Wish("generator", 2, "c"))

    def test_a_lost_node_cannot_be_joined_now(self) -> None:
        config = config_of(a={}, b={"generator": {"count": 1}})
        processes = processes_of(config)
        with pytest.raises(CannotScale, match="node b is lost; allowed: a;") as lost:
            plan_steps(config, processes, {"a": []}, Wish("generator", 3, "b"), next_index=2)
        assert lost.value.exit_code == 1

    def test_the_rules_of_the_start_hold(self) -> None:
        with pytest.raises(CannotScale, match=r"topology.nodes: got \d+ processes; allowed: at most 1024"):
            steps(config_of(n={}), Wish("generator", 5000))


class TestLeaving:
    def test_the_highest_go_first(self) -> None:
        config = config_of(n={"generator": {"count": 4}})
        assert [p.name for p in steps(config, Wish("generator", 2)).leaving] == ["generator-3", "generator-2"]
        assert steps(config, Wish("generator", 4)) == Steps()

    def test_highest_is_a_number(self) -> None:
        config = config_of(n={"grader": {"count": 12}})
        assert [p.name for p in steps(config, Wish("grader", 11)).leaving] == ["grader-11"]

    def test_a_process_ends_as_a_whole(self) -> None:
        config = config_of(n={"generator": {"count": 5, "per_process": 2}})
        assert [p.name for p in steps(config, Wish("generator", 2)).leaving] == ["generator-4", "generator-2-3"]
        with pytest.raises(CannotScale, match=r"generator-2-3 holds 2 actors and ends as a whole; .*: 4 or 2"):
            steps(config, Wish("generator", 3))

    def test_from_one_node_no_more_than_it_has(self) -> None:
        config = config_of(a={}, b={"generator": {"count": 1}})
        assert [p.name for p in steps(config, Wish("generator", 1, "a")).leaving] == ["generator-0"]
        assert [p.name for p in steps(config, Wish("generator", 1)).leaving] == ["generator-1"]
        config = config_of(a={"generator": {"count": 3}}, b={"generator": {"count": 1}})
        with pytest.raises(CannotScale, match="node b has only 1 of them; allowed there: 3 or more"):
            steps(config, Wish("generator", 2, "b"))


class TestRefusals:
    @pytest.mark.parametrize("role", SINGLE)
    def test_of_some_there_is_exactly_one(self, role: str) -> None:
        for count in (1, 2):
            with pytest.raises(CannotScale, match=f"{role} cannot be scaled: a run has exactly one; allowed: environ"):
                steps(config_of(n={}), Wish(role, count))

    def test_unknown_names(self) -> None:
        with pytest.raises(CannotScale, match=r"no role 'genrator'; allowed: .*; did you mean 'generator'\?"):
            steps(config_of(n={}), Wish("genrator", 2))
        with pytest.raises(CannotScale, match="--node: got 'm'; allowed: n"):
            steps(config_of(n={}), Wish("generator", 2, "m"))

    @pytest.mark.parametrize(
        "text", ["generator=0", "generator=-1", "generator=x", "generator=", "generator=1.5", "generator=²", "g=99999"]
    )
    def test_counts_that_are_none(self, text: str) -> None:
        with pytest.raises(CannotScale, match="allowed: an integer from 1 to 10000: a role needs at least one") as no:
            parse_wish(text)
        assert no.value.exit_code == 2

    def test_huge_counts_are_not_computed_with(self) -> None:
        with pytest.raises(CannotScale, match="an integer from 1"):
            parse_wish("generator=" + "9" * 5000)

    def test_a_wish_is_role_equals_count(self) -> None:
        assert parse_wish("generator=2", "n") == Wish("generator", 2, "n")
        with pytest.raises(CannotScale, match="give ROLE=COUNT"):
            parse_wish("=2")


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), max_size=8), st.integers(1, 3))
def test_a_history_of_wishes_never_uses_an_index_twice(counts: list[int], per_process: int) -> None:
    config = config_of(n={"generator": {"count": 1, "per_process": per_process}})
    processes, used = list(processes_of(config)), {"generator/0"}
    for count in counts:
        try:
            made = steps(config, Wish("generator", count), processes=processes, next_index=len(used))
        except CannotScale:
            assert per_process > 1, "only a process that holds several cannot be cut"
            continue
        names = [name for p in made.joining for name in p.actors]
        assert not used & set(names)
        used.update(names)
        processes = [p for p in processes if p not in made.leaving] + [*made.joining]
        assert sum(len(p.actors) for p in processes if p.role == "generator") == count
