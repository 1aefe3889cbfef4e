"""Rules between keys: each names the key and the fix, and only broken ones speak."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.launch.checks import check_values

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
        ({"weights__kv": "kep"}, "weights.kv", "'keep'"),
        ({"weights__prefix_cache": "never"}, "weights.prefix_cache", "leave weights.prefix_cache out"),
        ({"weights__prefix_cache_max_versions": 0}, "weights.prefix_cache_max_versions", "use 8"),
        ({"weights__prefix_cache_max_versions": 1.5}, "weights.prefix_cache_max_versions", "use 8"),
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
