"""Placement: which processes a topology means, and what is wrong with one that means none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.environ import DEVICE_VARIABLE, check_distinct_devices, child_environment
from headrace.launch.start_order import in_start_order
from headrace.launch.topology import ProcessPlan, plan_topology

ROLES = {"generator", "environment", "learner", "judge"}
RESERVED = {"node"}


def one_node(actors: dict[str, Any], devices: list[int] | None = None) -> dict[str, Any]:
    return {"nodes": {"n": {"devices": devices or [], "actors": actors}}}


def test_processes_and_names() -> None:
    processes, problems = plan_topology(
        one_node({"environment": {"count": 5, "per_process": 2, "threads": 1}, "learner": {"count": 1}}), ROLES
    )
    assert not problems
    assert [(p.name, p.actors) for p in processes] == [
        ("environment-0-1", ("environment/0", "environment/1")),
        ("environment-2-3", ("environment/2", "environment/3")),
        ("environment-4", ("environment/4",)),
        ("learner-0", ("learner/0",)),
    ]
    assert processes[0].threads == 1
    assert processes[-1].threads is None


def test_indices_go_on_across_nodes() -> None:
    topology = {"nodes": {"a": {"actors": {"generator": {"count": 2}}}, "b": {"actors": {"generator": {"count": 1}}}}}
    processes, _ = plan_topology(topology, ROLES)
    assert [(p.node, p.actors[0]) for p in processes] == [
        ("a", "generator/0"),
        ("a", "generator/1"),
        ("b", "generator/2"),
    ]


@pytest.mark.parametrize("parent", [None, "", "0,1,2,3,4,5,6,7"])
def test_each_process_sees_devices_of_its_own(parent: str | None) -> None:
    """cases H110: NovaSky-AI/SkyRL#1577. One distinct device for each process, whatever the parent exports."""
    processes, problems = plan_topology(
        one_node({"generator": {"count": 8, "devices": 1}}, devices=list(range(8))), ROLES
    )
    assert not problems
    base = {} if parent is None else {DEVICE_VARIABLE: parent}
    environments = [(p.name, p.node, child_environment(base, p, offline=True)) for p in processes]
    assert sorted(env[DEVICE_VARIABLE] for _, _, env in environments) == [str(i) for i in range(8)]
    check_distinct_devices(environments)


def test_those_that_share_have_the_first_slots_together_and_nobody_else_has_them() -> None:
    actors = {
        "learner": {"count": 1, "devices": 1, "shared": True},
        "generator": {"count": 2, "devices": 1, "shared": True},
        "judge": {"count": 2, "devices": 1},
    }
    processes, problems = plan_topology(one_node(actors, devices=[0, 1, 2]), ROLES)
    assert not problems
    assert [(p.name, p.devices, p.shared) for p in processes] == [
        ("learner-0", ("0",), True),
        ("generator-0", ("0",), True),
        ("generator-1", ("0",), True),
        ("judge-0", ("1",), False),
        ("judge-1", ("2",), False),
    ]
    for devices, key in (([0, 1], "judge.devices"), ([], "learner.devices")):
        processes, problems = plan_topology(one_node(actors, devices=devices), ROLES)
        assert processes == ()
        assert problems[0].key == f"topology.nodes.n.actors.{key}"
    wrong = {"learner": {"count": 1, "shared": "yes"}}
    assert [p.key for p in plan_topology(one_node(wrong), ROLES)[1]] == ["topology.nodes.n.actors.learner.shared"]


def test_two_processes_on_one_device_are_refused_before_the_start() -> None:
    plan = ProcessPlan("a", "n", "generator", ("generator/0",), devices=("0",))
    env = child_environment({}, plan, offline=True)
    with pytest.raises(ValueError, match="both see device 0"):
        check_distinct_devices([("a", "n", env), ("b", "n", env)])
    check_distinct_devices([("a", "n", env), ("b", "another", env)])


def test_a_process_without_devices_sees_none() -> None:
    plan = ProcessPlan("a", "n", "environment", ("environment/0",))
    assert child_environment({DEVICE_VARIABLE: "0,1"}, plan, offline=False)[DEVICE_VARIABLE] == ""


@pytest.mark.slow
@pytest.mark.vllm
def test_an_engines_sockets_go_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network_utils = pytest.importorskip("vllm.utils.network_utils")
    plan = ProcessPlan("a", "n", "generator", ("generator/0",))
    name = "VLLM_RPC_BASE_PATH"
    monkeypatch.setenv(name, child_environment({}, plan, offline=True, private_folder=str(tmp_path))[name])
    assert network_utils.get_open_zmq_ipc_path().startswith(f"ipc://{tmp_path}/")


@pytest.mark.parametrize(
    ("topology", "key", "fix"),
    [
        ({}, "topology.nodes", "choose a topology"),
        (one_node({"genrator": {"count": 1}}), "topology.nodes.n.actors.genrator", "'generator'"),
        (one_node({"generator": {"count": -1}}), "topology.nodes.n.actors.generator.count", "from 0"),
        (one_node({"generator": {"count": True}}), "topology.nodes.n.actors.generator.count", "an integer"),
        (
            one_node({"generator": {"count": 2, "per_process": 0}}),
            "topology.nodes.n.actors.generator.per_process",
            "from 1",
        ),
        (one_node({"generator": {"cuont": 2}}), "topology.nodes.n.actors.generator.cuont", "'count'"),
        (
            one_node({"generator": {"count": 2, "devices": 2}}, [0, 1, 2]),
            "topology.nodes.n.actors.generator.devices",
            "list more",
        ),
        (one_node({"generator": {"count": 1}}, [0, 0]), "topology.nodes.n.devices", "once"),
        (one_node({"generator": {"count": 1}}, [-1]), "topology.nodes.n.devices", "[0, 1, …]"),
        (one_node({"generator": {"count": 1}}, [None]), "topology.nodes.n.devices", "[0, 1, …]"),
        ({**one_node({"generator": {"count": 1}}), "node": 1}, "topology.node", "'nodes'"),
        (
            one_node({"generator": {"environment": {"A": None}}}),
            "topology.nodes.n.actors.generator.environment",
            "quote",
        ),
        ({"nodes": {"n": {"actor": {}}}}, "topology.nodes.n.actor", "'actors'"),
        (one_node({"generator": 2}), "topology.nodes.n.actors.generator", "{count: 1}"),
        ({"nodes": {"n": {"actors": "foo"}}}, "topology.nodes.n.actors", "{generator: {count: 1}, …}"),
        ({"nodes": {"n": {"actors": [1]}}}, "topology.nodes.n.actors", "{generator: {count: 1}, …}"),
        ({"nodes": {"n": [1]}}, "topology.nodes.n", "give it actors"),
        ({"nodes": {"n": {"devices": "01"}}}, "topology.nodes.n.devices", "[0, 1, …]"),
        ({"nodes": {"a/b": {"actors": {}}}}, "topology.nodes.a/b", "part of a file's"),
        (one_node({"node": {"count": 1}}), "topology.nodes.n.actors.node", "another name"),
        ("foo", "topology.nodes", "choose a topology"),
        (one_node({"generator": {"environment": "A=1"}}), "topology.nodes.n.actors.generator.environment", "NAME"),
        (one_node({"generator": {"environment": [1]}}), "topology.nodes.n.actors.generator.environment", "NAME"),
        (one_node({"generator": {"count": 5000}}), "topology.nodes", "per_process"),
        (one_node({"generator": {"count": float("nan")}}), "topology.nodes.n.actors.generator.count", "an integer"),
    ],
)
def test_impossible_topologies(topology: Any, key: str, fix: str) -> None:
    processes, problems = plan_topology(topology, ROLES | RESERVED)
    assert processes == ()
    assert [problem.key for problem in problems] == [key]
    assert fix in problems[0].fix


@given(st.dictionaries(st.sampled_from(sorted(ROLES)), st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=4))
def test_every_actor_is_placed_once(counts: dict[str, tuple[int, int]]) -> None:
    actors = {role: {"count": count, "per_process": per} for role, (count, per) in counts.items()}
    processes, problems = plan_topology(one_node(actors), ROLES)
    assert not problems
    placed = [name for p in processes for name in p.actors]
    assert sorted(placed) == sorted(f"{role}/{i}" for role, (count, _) in counts.items() for i in range(count))
    assert len({p.name for p in processes}) == len(processes)


def test_start_order_puts_custom_roles_last() -> None:
    processes, _ = plan_topology(one_node({role: {"count": 1} for role in ("judge", "learner", "generator")}), ROLES)
    assert [p.role for p in in_start_order(processes)] == ["generator", "learner", "judge"]
