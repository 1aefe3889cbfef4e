"""What must hold between keys of a resolved configuration. Pure; a key that is absent is not checked.

Each rule is one function: config → problems. What concerns one class alone is that class's constructor's to check;
where processes are placed is checked in placement_checks.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headrace.actors.generator.kv_policy import KV, PREFIX_CACHE
from headrace.launch.problems import Problem, did_you_mean, listing, shorten
from headrace.launch.start_order import DEFAULT_ORDER

ENGINE_ROLES = ("generator", "evaluator")
VLLM = "headrace.actors.generator.vllm_engine.VllmEngine"
LOCAL_LAUNCHER = "headrace.launch.local.LocalLauncher"

MAX_SEED = 2**32 - 1
"""the largest that every library takes (numpy's is the narrowest)"""

COLDEST, HOTTEST = 0.01, 100.0
"""Below, engines raise the temperature by themselves, so that their log-probs are no longer those of the setting, and
logits overflow; above, every token is as likely as any other."""


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, None where there is none."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def evaluates_only(config: Mapping[str, Any]) -> bool:
    """Whether nothing is trained: `headrace eval`."""
    return value_at(config, "dispatcher.only_evaluates") is True


def _numbers(config: Mapping[str, Any], *keys: str) -> list[float] | None:
    """The values of all keys, or None where one is absent or no finite number (other checks report that)."""
    values = [value_at(config, key) for key in keys]
    plain = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
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
    if every < 1:
        return [Problem("weights.every_steps", shorten(every), "an integer >= 1", "use 1 for each step")]
    if every <= lag + 1:
        return []
    fix = f"lower weights.every_steps, or set staleness.max_lag_versions={int(every) - 1}"
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
    wanted = {
        "staleness.max_lag_versions": "0",
        "staleness.hard_lag_versions": "0",
        "weights.every_steps": "1",
        "weights.every_s": "null",
    }
    return [
        Problem(key, shorten(value_at(config, key)), f"{value} with mode=sync", f"leave {key} out, or use mode=async")
        for key, value in wanted.items()
        if value_at(config, key) is not None and str(value_at(config, key)) != value
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


def samplable(config: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for key in ("sampling.max_tokens", "sampling.max_prompt_tokens"):
        for value in _numbers(config, key) or []:
            if value < 1:
                problems.append(Problem(key, shorten(value), "an integer >= 1", "count tokens: 64, for example"))
    for value in _numbers(config, "sampling.temperature") or []:
        if not COLDEST <= value <= HOTTEST:
            allowed = f"a number from {COLDEST} to {HOTTEST:g}"
            problems.append(Problem("sampling.temperature", shorten(value), allowed, "use 1.0, or a number near it"))
    return problems


def one_seed_for_all(config: Mapping[str, Any]) -> list[Problem]:
    value = config.get("seed", 0)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SEED:
        return []
    return [Problem("seed", shorten(value), f"an integer from 0 to {MAX_SEED}", "use seed=0, for example")]


def enough_held_out(config: Mapping[str, Any]) -> list[Problem]:
    """A source refuses to give more held-out tasks than it keeps, but only when it is asked: in the middle of a run."""
    ways_out = {
        "evaluation.num_prompts": "set evaluation=off for none",
        "learner.probe.prompts.num": "set learner.probe=null for no probe",
    }
    problems = []
    for key, way_out in ways_out.items():
        values = _numbers(config, key, "tasks.held_out_size")
        if values is not None and values[0] > values[1] >= 0:
            allowed = f"at most tasks.held_out_size ({values[1]})"
            fix = f"lower it, set tasks.held_out_size={values[0]}, or {way_out}"
            problems.append(Problem(key, shorten(values[0]), allowed, fix))
    return problems


def launcher_names_roles(config: Mapping[str, Any]) -> list[Problem]:
    """A name that is no role would silently never be restarted, or have no place in the order. Built-in roles may be
    absent."""
    nodes = value_at(config, "topology.nodes")
    contents = nodes.values() if isinstance(nodes, Mapping) else ()
    placed = [content.get("actors") for content in contents if isinstance(content, Mapping)]
    known = {*DEFAULT_ORDER, *(str(role) for actors in placed if isinstance(actors, Mapping) for role in actors)}
    named = {key: value_at(config, key) for key in ("launch.restart", "launch.start_order")}
    return [
        Problem(key, shorten(role), listing(known), did_you_mean(str(role), known, "name a role, or []"))
        for key, names in named.items()
        for role in (names if isinstance(names, list) else [])
        if role not in known
    ]


def engines_sleep_in_sync_only(config: Mapping[str, Any]) -> list[Problem]:
    if config.get("mode") == "sync":
        return []
    keys = [f"{role}.engine.sleep_while_training" for role in ENGINE_ROLES]
    allowed = "false, unless mode=sync: with mode=async engines serve while the learner trains"
    asked = [key for key in keys if value_at(config, key) is True]
    return [Problem(key, "True", allowed, f"use mode=sync, or leave {key} out") for key in asked]


def known_kv_policy(config: Mapping[str, Any]) -> list[Problem]:
    """Also where the engine caches no prefixes, and would not be told: another engine reads the same settings."""
    problems = []
    for name, allowed in (("kv", KV), ("prefix_cache", PREFIX_CACHE)):
        value = value_at(config, f"weights.{name}")
        if value is not None and value not in allowed:
            fix = did_you_mean(str(value), allowed, f"leave weights.{name} out")
            problems.append(Problem(f"weights.{name}", shorten(value), listing(allowed), fix))
    for value in _numbers(config, "weights.prefix_cache_max_versions") or []:
        if value < 1 or not isinstance(value, int):
            fix = "use 8, for example"
            problems.append(
                Problem("weights.prefix_cache_max_versions", shorten(value), "an integer >= 1, or null", fix)
            )
    return problems


RULES: tuple[Callable[[Mapping[str, Any]], list[Problem]], ...] = (
    whole_groups,
    publications_within_lag,
    hard_lag_above_pace,
    sync_means_no_lag,
    tokens_fit_context,
    samplable,
    one_seed_for_all,
    enough_held_out,
    launcher_names_roles,
    engines_sleep_in_sync_only,
    known_kv_policy,
)


def check_values(config: Mapping[str, Any]) -> list[Problem]:
    """Every rule's problems."""
    return [problem for rule in RULES for problem in rule(config)]
