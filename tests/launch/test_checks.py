"""Rules between keys: each names the key and the fix, and only broken ones speak."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.launch.checks import VLLM, check_counts, check_one_gpu, check_relays, check_values
from headrace.launch.topology import ProcessPlan

GOOD: dict[str, Any] = {
    "mode": "async",
    "training": {"batch_sessions": 64, "group_size": 8},
    "staleness": {"max_lag_versions": 4, "hard_lag_versions": None},
    "weights": {"every_steps": 5},
    "sampling": {"max_prompt_tokens": 64, "max_tokens": 24},
    "inference": {"context_tokens": 88},
    "evaluation": {"num_prompts": 4},
    "tasks": {"held_out_size": 64},
}


def changed(**values: Any) -> dict[str, Any]:
    config = {k: dict(v) if isinstance(v, dict) else v for k, v in GOOD.items()}
    for key, value in values.items():
        group, _, name = key.partition("__")
        if name:
            config[group][name] = value
        else:
            config[group] = value
    return config


def test_good_values_have_no_problem() -> None:
    assert check_values(GOOD) == []
    assert check_values({}) == []


@pytest.mark.parametrize(
    ("values", "key", "fix"),
    [
        ({"training__batch_sessions": 60}, "training.batch_sessions", "training.batch_sessions=64"),
        ({"training__batch_sessions": 4}, "training.batch_sessions", "training.batch_sessions=8"),
        ({"training__group_size": 0}, "training.group_size", "8"),
        ({"weights__every_steps": 6}, "weights.every_steps", "max_lag_versions=5"),
        ({"weights__every_steps": 0}, "weights.every_steps", "use 1"),
        ({"staleness__hard_lag_versions": 3}, "staleness.hard_lag_versions", "null"),
        ({"sampling__max_tokens": 25}, "sampling.max_tokens", "lower it"),
        ({"sampling__max_tokens": 0}, "sampling.max_tokens", "count tokens"),
        ({"sampling__max_prompt_tokens": -5}, "sampling.max_prompt_tokens", "count tokens"),
        ({"sampling__temperature": 0}, "sampling.temperature", "1.0"),
        ({"sampling__temperature": 1e-30}, "sampling.temperature", "1.0"),
        ({"sampling__temperature": 1e9}, "sampling.temperature", "1.0"),
        ({"seed": -1}, "seed", "seed=0"),
        ({"seed": 10**23}, "seed", "seed=0"),
        ({"seed": None}, "seed", "seed=0"),
        ({"tasks__held_out_size": 3}, "evaluation.num_prompts", "tasks.held_out_size=4"),
        ({"learner": {"probe": {"prompts": {"num": 65}}}}, "learner.probe.prompts.num", "learner.probe=null"),
        ({"launch": {"restart": ["grader", "gradr"]}}, "launch.restart", "'grader'"),
        ({"launch": {"restart": ["tasks"]}}, "launch.restart", "name a role"),
        ({"launch": {"start_order": ["a"]}}, "launch.start_order", "name a role"),
        (
            {"generator": {"engine": {"sleep_while_training": True}}},
            "generator.engine.sleep_while_training",
            "use mode=sync",
        ),
    ],
)
def test_each_rule(values: dict[str, Any], key: str, fix: str) -> None:
    problems = check_values(changed(**values))
    assert [problem.key for problem in problems] == [key]
    assert fix in str(problems[0])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["staleness.max_lag_versions", "training.group_size", "sampling.temperature"])
def test_rules_leave_numbers_that_are_not_finite_to_their_own_check(key: str, value: float) -> None:
    assert check_values(changed(**{key.replace(".", "__"): value})) == []


def test_engines_may_sleep_where_rollouts_and_training_take_turns() -> None:
    engine = {"engine": {"sleep_while_training": True}}
    assert check_values({"mode": "sync", "generator": engine, "evaluator": engine}) == []
    assert check_values({"mode": "async", "generator": {"engine": {"sleep_while_training": False}}}) == []


def test_a_custom_role_may_be_restarted() -> None:
    judge = {"_target_": "my.Judge"}
    topology = {"nodes": {"n": {"actors": {"judge": {"count": 1}}}}}
    assert check_values(changed(judge=judge, topology=topology, launch={"restart": ["judge", "environment"]})) == []


def test_sync_contradicted_is_refused_and_not_rewritten() -> None:
    keys = {problem.key for problem in check_values(changed(mode="sync"))}
    assert keys == {"staleness.max_lag_versions", "weights.every_steps"}


def test_counts_of_a_training_topology() -> None:
    def plans(**counts: int) -> tuple[ProcessPlan, ...]:
        return tuple(ProcessPlan(f"{r}-{i}", "n", r, (f"{r}/{i}",)) for r, n in counts.items() for i in range(n))

    full = {"dispatcher": 1, "environment": 2, "generator": 1, "grader": 1, "learner": 1, "parameter_server": 1}
    assert check_counts(plans(**full, evaluator=1), GOOD) == []
    assert [p.key for p in check_counts(plans(**full), GOOD)] == ["topology.nodes.*.actors.evaluator.count"]
    assert check_counts(plans(**full), changed(evaluation__num_prompts=0)) == []
    assert [p.key for p in check_counts(plans(**full, evaluator=1, monitor=2), GOOD)] == [
        "topology.nodes.*.actors.monitor.count"
    ]
    assert check_counts(plans(judge=3), GOOD) == []
    assert check_counts(plans(generator=2), GOOD) == []


def test_a_topology_that_would_idle_for_ever_is_refused() -> None:
    assert [p.key for p in check_counts((), GOOD)] == ["topology.nodes.*.actors"]
    without_learner = (ProcessPlan("dispatcher-0", "n", "dispatcher", ("dispatcher/0",)),)
    keys = {p.key for p in check_counts(without_learner, GOOD)}
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
    assert (
        check_relays(placed(learner="a", parameter_server="b", generator="b"), {"weights": {"transport": "shm"}}) == []
    )


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
