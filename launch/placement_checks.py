"""What must hold of where a topology places its processes, given the configuration: problems before a run starts, or
before it is scaled; and which roles are bound to others' nodes in a run that loses some. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.launch.checks import ENGINE_ROLES, VLLM, evaluates_only, value_at
from headrace.launch.placement import NO_BONDS, Bonds
from headrace.launch.problems import Problem, shorten
from headrace.launch.topology import ProcessPlan, count_actors

NEEDED_ROLES = ("dispatcher", "environment", "generator", "grader", "learner", "parameter_server")
EVALUATION_ROLES = ("dispatcher", "environment", "grader", "parameter_server")
"""Of a run that only evaluates."""
SINGLE_ROLES = ("dispatcher", "learner", "parameter_server", "monitor")
TRAINING_ROLES = ("dispatcher", "learner")
"""Where one of these is placed, the run is a training run: without the others it would wait for ever."""


def bonds_of(config: Mapping[str, Any]) -> Bonds:
    """With weights=stream the parameter server, and engines beside it, read what the learner staged in its host's
    memory; other engines read what the relay of their host keeps there."""
    if value_at(config, "weights.transport") != "stream":
        return NO_BONDS
    return Bonds(
        together=frozenset(("learner", "parameter_server")),
        readers=frozenset(ENGINE_ROLES),
        owners=frozenset(("learner",)),
        carriers=frozenset(("relay",)),
    )


def check_relays(processes: Sequence[ProcessPlan], config: Mapping[str, Any]) -> list[Problem]:
    """With weights=stream, before the start: one relay, where one is needed, and the parameter server in its place."""
    if bonds_of(config) == NO_BONDS:
        return []
    on = _nodes_by_role(processes)
    learner = on.get("learner", [])
    problems = [
        Problem(
            f"topology.nodes.{node}.actors.parameter_server",
            f"on node {node}",
            f"on the learner's node, {learner[0]}, with weights.transport=stream",
            f"move it to topology.nodes.{learner[0]}.actors: it gives other hosts what the learner staged",
        )
        for node in on.get("parameter_server", [])
        if learner and node not in learner
    ]
    several = {node for node in on.get("relay", []) if on["relay"].count(node) > 1}
    return [
        *problems,
        *(_relay_problem(node, on) for node in sorted(several)),
        *check_engines_reached(processes, config),
    ]


def check_engines_reached(processes: Sequence[ProcessPlan], config: Mapping[str, Any]) -> list[Problem]:
    """With weights=stream, at any time: each node of engines has what gives them the weights."""
    bonds, on = bonds_of(config), _nodes_by_role(processes)
    if bonds == NO_BONDS or not on.get("learner"):  # without a learner: its author's business
        return []
    far = {node for role in bonds.readers for node in on.get(role, [])}
    reached = {node for role in bonds.owners | bonds.carriers for node in on.get(role, [])}
    return [_relay_problem(node, on) for node in sorted(far - reached)]


def _relay_problem(node: str, on: Mapping[str, Sequence[str]]) -> Problem:
    allowed = "1 on a node that has engines and no learner, with weights.transport=stream"
    fix = "write relay: {count: 1}, or use weights=shm where one host plays all nodes"
    return Problem(f"topology.nodes.{node}.actors.relay.count", str(on.get("relay", []).count(node)), allowed, fix)


def _nodes_by_role(processes: Sequence[ProcessPlan]) -> dict[str, list[str]]:
    """A role's nodes, one entry for each actor."""
    on: dict[str, list[str]] = {}
    for process in processes:
        on.setdefault(process.role, []).extend(process.node for _ in process.actors)
    return on


def check_ranks(processes: Sequence[ProcessPlan], config: Mapping[str, Any]) -> list[Problem]:
    """As many ranks beside the learner as its settings say."""
    counts = count_actors(tuple(processes))
    wanted, placed = value_at(config, "learner.num_ranks"), counts.get("learner_rank", 0)
    if not counts.get("learner") or not isinstance(wanted, int) or wanted < 1 or placed == wanted - 1:
        return []
    key = "topology.nodes.*.actors.learner_rank.count"
    allowed = f"{wanted - 1} in all, beside the learner, as learner.num_ranks is {wanted}"
    return [Problem(key, f"{placed} in all", allowed, f"set it to {wanted - 1}, or learner.num_ranks={placed + 1}")]


def check_one_gpu(processes: tuple[ProcessPlan, ...], config: Mapping[str, Any]) -> list[Problem]:
    """With weights=ipc: the learner is on a GPU, and every engine is vLLM on the same one."""
    learner = next((process for process in processes if process.role == "learner"), None)
    if value_at(config, "weights.transport") != "ipc" or learner is None:
        return []
    given, fix = "'ipc'", "use weights=shm, or topology=one_gpu learner.device=cuda evaluator/engine=vllm"
    device = value_at(config, "learner.device")
    if not str(device).startswith("cuda"):
        allowed = f"shm, stream, checkpoint or nccl, as learner.device is {shorten(device)}"
        return [Problem("weights.transport", given, allowed, fix)]
    for process in processes:
        if process.role not in ENGINE_ROLES:
            continue
        place = f"{process.name} has {'GPU ' + ', '.join(process.devices) if process.devices else 'no GPU'}"
        has = f"the learner {'GPU ' + ', '.join(learner.devices) if learner.devices else 'none by the topology'}"
        if process.node != learner.node or process.devices != learner.devices:
            return [Problem("weights.transport", given, f"shm or nccl, as {place} and {has}", fix)]
        engine = value_at(config, f"{process.role}.engine._target_")
        if engine != VLLM:
            allowed = f"shm, as {process.role}.engine is {shorten(engine)}, which cannot map device memory"
            return [Problem("weights.transport", given, allowed, f"{process.role}/engine=vllm, or weights=shm")]
    return []


def check_counts(processes: tuple[ProcessPlan, ...], config: Mapping[str, Any]) -> list[Problem]:
    """At least one actor, at least one of each role that a training run needs, exactly one where two would disagree.

    Topologies without a dispatcher and a learner (a benchmark, a system of custom actors) are their author's business.
    """
    counts = count_actors(processes)
    if not counts:
        return [
            Problem("topology.nodes.*.actors", "no actors", "at least one", "give a node actors: {ROLE: {count: 1}}")
        ]
    problems = [
        Problem(
            f"topology.nodes.*.actors.{role}.count", str(counts[role]), "1 in all", "lower it: this role is not sharded"
        )
        for role in SINGLE_ROLES
        if counts.get(role, 0) > 1
    ]
    if not counts.keys() & set(TRAINING_ROLES):
        return problems
    needed = list(EVALUATION_ROLES if evaluates_only(config) else NEEDED_ROLES)
    if value_at(config, "evaluation.num_prompts") and value_at(config, "evaluation.enabled") is not False:
        needed.append("evaluator")
    problems += [
        Problem(f"topology.nodes.*.actors.{role}.count", "0 in all", "1 or more", "give a node at least one")
        for role in needed
        if not counts.get(role)
    ]
    return problems
