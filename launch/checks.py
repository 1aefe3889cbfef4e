"""What must hold between keys of a resolved configuration. Pure; a key that is absent is not checked.

Each rule is one function: config → problems. What concerns one class alone is that class's constructor's to check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.launch.problems import Problem, shorten
from headrace.launch.topology import ProcessPlan, count_actors

NEEDED_ROLES = ("dispatcher", "environment", "generator", "grader", "learner", "parameter_server")
SINGLE_ROLES = ("dispatcher", "learner", "parameter_server", "monitor")


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _numbers(config: Mapping[str, Any], *keys: str) -> list[float] | None:
    """The values of all keys, or None where one is absent or no number (the schema check reports that)."""
    values = [value_at(config, key) for key in keys]
    plain = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return plain if len(plain) == len(values) else None


def whole_groups(config: Mapping[str, Any]) -> list[Problem]:
    values = _numbers(config, "training.batch_sessions", "training.group_size")
    if values is None:
        return []
    batch, group = values
    if group < 1:
        return [Problem("training.group_size", shorten(group), "an integer >= 1", "use 8, for example")]
    if batch < group or batch % group:
        nearest = int(max(1, round(batch / group)) * group)
        fix = f"use training.batch_sessions={nearest}"
        return [Problem("training.batch_sessions", shorten(batch), f"a multiple of training.group_size ({group})", fix)]
    return []


def publications_within_lag(config: Mapping[str, Any]) -> list[Problem]:
    """Admission counts from the newest version that generators serve: fewer publications than this and it stops for
    ever."""
    values = _numbers(config, "weights.every_steps", "staleness.max_lag_versions")
    if values is None:
        return []
    every, lag = values
    if 1 <= every <= lag + 1:
        return []
    fix = f"lower weights.every_steps, or set staleness.max_lag_versions={int(max(every, 1)) - 1}"
    return [
        Problem("weights.every_steps", shorten(every), f"1 to staleness.max_lag_versions + 1 = {int(lag) + 1}", fix)
    ]


def hard_lag_above_pace(config: Mapping[str, Any]) -> list[Problem]:
    values = _numbers(config, "staleness.hard_lag_versions", "staleness.max_lag_versions")
    if values is None or values[0] >= values[1]:
        return []
    allowed = f">= staleness.max_lag_versions ({values[1]}), or null"
    return [Problem("staleness.hard_lag_versions", shorten(values[0]), allowed, "raise it, or leave it null")]


def sync_means_no_lag(config: Mapping[str, Any]) -> list[Problem]:
    """Nothing rewrites settings after composition: what contradicts the mode is refused."""
    if config.get("mode") != "sync":
        return []
    wanted = {"staleness.max_lag_versions": 0, "staleness.hard_lag_versions": 0, "weights.every_steps": 1}
    return [
        Problem(key, shorten(value_at(config, key)), f"{value} with mode=sync", f"leave {key} out, or use mode=async")
        for key, value in wanted.items()
        if value_at(config, key) is not None and value_at(config, key) != value
    ]


def tokens_fit_context(config: Mapping[str, Any]) -> list[Problem]:
    values = _numbers(config, "sampling.max_prompt_tokens", "sampling.max_tokens", "inference.context_tokens")
    if values is None or values[0] + values[1] <= values[2]:
        return []
    prompt, answer, context = (int(v) for v in values)
    allowed = (
        f"at most inference.context_tokens ({context}) − sampling.max_prompt_tokens ({prompt}) = {context - prompt}"
    )
    return [Problem("sampling.max_tokens", str(answer), allowed, "lower it, or choose a model with a longer context")]


RULES: tuple[Callable[[Mapping[str, Any]], list[Problem]], ...] = (
    whole_groups,
    publications_within_lag,
    hard_lag_above_pace,
    sync_means_no_lag,
    tokens_fit_context,
)


def check_values(config: Mapping[str, Any]) -> list[Problem]:
    """Every rule's problems."""
    return [problem for rule in RULES for problem in rule(config)]


def check_counts(processes: tuple[ProcessPlan, ...], config: Mapping[str, Any]) -> list[Problem]:
    """At least one of each role that a training run needs, exactly one where two would disagree.

    Applies to topologies with a learner; others (a benchmark, a system of custom actors) are their author's business.
    """
    counts = count_actors(processes)
    problems = [
        Problem(
            f"topology.nodes.*.actors.{role}.count", str(counts[role]), "1 in all", "lower it: this role is not sharded"
        )
        for role in SINGLE_ROLES
        if counts.get(role, 0) > 1
    ]
    if "learner" not in counts:
        return problems
    needed = [*NEEDED_ROLES]
    if value_at(config, "evaluation.num_prompts"):
        needed.append("evaluator")
    problems += [
        Problem(f"topology.nodes.*.actors.{role}.count", "0 in all", "1 or more", "give a node at least one")
        for role in needed
        if not counts.get(role)
    ]
    return problems
