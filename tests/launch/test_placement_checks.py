"""Rules of where processes are placed: each names the key and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.launch.checks import VLLM
from headrace.launch.placement import NO_BONDS
from headrace.launch.placement_checks import (
    bonds_of,
    check_counts,
    check_engines_reached,
    check_one_gpu,
    check_ranks,
    check_relays,
)
from headrace.launch.topology import ProcessPlan

EVALUATED: dict[str, Any] = {"evaluation": {"num_prompts": 4}}


def test_counts_of_a_training_topology() -> None:
    def plans(**counts: int) -> tuple[ProcessPlan, ...]:
        return tuple(ProcessPlan(f"{r}-{i}", "n", r, (f"{r}/{i}",)) for r, n in counts.items() for i in range(n))

    full = {"dispatcher": 1, "environment": 2, "generator": 1, "grader": 1, "learner": 1, "parameter_server": 1}
    assert check_counts(plans(**full, evaluator=1), EVALUATED) == []
    assert [p.key for p in check_counts(plans(**full), EVALUATED)] == ["topology.nodes.*.actors.evaluator.count"]
    assert check_counts(plans(**full), {"evaluation": {"num_prompts": 0}}) == []
    assert [p.key for p in check_counts(plans(**full, evaluator=1, monitor=2), EVALUATED)] == [
        "topology.nodes.*.actors.monitor.count"
    ]
    assert check_counts(plans(judge=3), EVALUATED) == []
    assert check_counts(plans(generator=2), EVALUATED) == []


def test_a_topology_that_would_idle_for_ever_is_refused() -> None:
    assert [p.key for p in check_counts((), EVALUATED)] == ["topology.nodes.*.actors"]
    without_learner = (ProcessPlan("dispatcher-0", "n", "dispatcher", ("dispatcher/0",)),)
    keys = {p.key for p in check_counts(without_learner, EVALUATED)}
    assert "topology.nodes.*.actors.learner.count" in keys


def placed(**roles: str) -> tuple[ProcessPlan, ...]:
    """One actor of each role on the nodes named, in a word: "a", "a b"."""
    return tuple(
        ProcessPlan(f"{role}-{i}", node, role, (f"{role}/{i}",))
        for role, nodes in roles.items()
        for i, node in enumerate(nodes.split())
    )


STREAM = {"weights": {"transport": "stream"}}


def test_weights_for_other_hosts_need_a_relay_there_and_their_source_beside_the_learner() -> None:
    whole = {"learner": "a", "parameter_server": "a", "generator": "a b", "evaluator": "c", "relay": "b c"}
    assert check_relays(placed(**whole), STREAM) == []
    assert check_relays(placed(learner="a", parameter_server="a", generator="a"), STREAM) == []
    [elsewhere] = check_relays(placed(**whole | {"parameter_server": "b"}), STREAM)
    assert elsewhere.key == "topology.nodes.b.actors.parameter_server"
    assert "topology.nodes.a.actors" in elsewhere.fix
    for relays, given in (("c", "0"), ("b b c", "2")):
        [wrong] = check_relays(placed(**whole | {"relay": relays}), STREAM)
        assert (wrong.key, wrong.given) == ("topology.nodes.b.actors.relay.count", given)
        assert "relay: {count: 1}" in wrong.fix


def test_other_means_need_no_relay() -> None:
    shm = {"weights": {"transport": "shm"}}
    assert check_relays(placed(learner="a", parameter_server="b", generator="b"), shm) == []
    assert bonds_of(shm) == NO_BONDS


def test_in_a_running_run_relays_may_be_more_but_not_missing() -> None:
    """After a lost node two may have come to one node."""
    reached = placed(learner="a", generator="a b", relay="b b c")
    assert check_engines_reached(reached, STREAM) == []
    [missing] = check_engines_reached(placed(learner="a", generator="a b", relay="c"), STREAM)
    assert missing.key == "topology.nodes.b.actors.relay.count"


@pytest.mark.parametrize(
    ("device", "engines", "engine", "said"),
    [
        ("cuda", (("0",), ("0",)), VLLM, None),
        ("cpu", (("0",), ("0",)), VLLM, "learner.device is 'cpu'"),
        ("cuda", (("0",), ()), VLLM, "generator-1 has no GPU and the learner GPU 0"),
        ("cuda", (("0",), ("1",)), VLLM, "generator-1 has GPU 1 and the learner GPU 0"),
        ("cuda", (("0",), ("0",)), "x.Torch", "cannot map device memory"),
    ],
)
def test_ipc_is_for_a_learner_and_engines_on_one_gpu(
    device: str, engines: tuple[tuple[str, ...], ...], engine: str, said: str | None
) -> None:
    learner = ProcessPlan("learner-0", "n", "learner", ("learner/0",), ("0",), shared=True)
    processes = [
        ProcessPlan(f"generator-{i}", "n", "generator", (f"generator/{i}",), devices, shared=True)
        for i, devices in enumerate(engines)
    ]
    config = {
        "weights": {"transport": "ipc"},
        "learner": {"device": device},
        "generator": {"engine": {"_target_": engine}},
    }
    problems = check_one_gpu((learner, *processes), config)
    assert [p.key for p in problems] == ([] if said is None else ["weights.transport"])
    if said is not None:
        assert said in problems[0].allowed
        assert "weights=shm" in problems[0].fix
    assert check_one_gpu((learner, *processes), {**config, "weights": {"transport": "shm"}}) == []


@pytest.mark.parametrize(
    ("num_ranks", "nodes", "fix"),
    [
        (1, "", ""),
        (3, "a b", ""),
        (2, "", "set it to 1, or learner.num_ranks=1"),
        (1, "a", "set it to 0"),
        (2, "a b", "=3"),
    ],
)
def test_as_many_ranks_as_the_learner_wants(num_ranks: int, nodes: str, fix: str) -> None:
    config = {"learner": {"num_ranks": num_ranks}}
    problems = check_ranks(placed(learner="a", learner_rank=nodes), config)
    assert [problem.key for problem in problems] == (["topology.nodes.*.actors.learner_rank.count"] if fix else [])
    assert all(fix in str(problem) for problem in problems)
    assert check_ranks(placed(generator="a"), config) == [], "no learner: its author's business"
