"""From `topology.nodes` to processes: which actors share a process, on which node, with which device slots. Pure.

    topology:
      nodes:
        rollout:                        # a machine; several nodes may be played by one host
          devices: [0, 1, 2, 3]         # accelerator ids of the node; empty on a CPU machine
          actors:
            generator: {count: 2, per_process: 1, devices: 2, threads: 8}

`plan_topology` returns the plan or every problem found. Called by the launcher, by the preflight, and for what joins a
running run (scaling.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.launch.problems import Problem, did_you_mean, listing, shorten

NODE_KEYS = ("actors", "devices")
PLACEMENT_KEYS = ("count", "per_process", "devices", "shared", "threads", "environment")
RESERVED_ROLES = ("directory", "node", "runtime", "supervisor")
"""names of the run's own actors"""
LARGEST_COUNT = 10_000
MOST_PROCESSES = 1_024
"""of one launch: each is an interpreter with its libraries"""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process. `actors` are full names ("generator/0"); `devices` are distinct slots of its node, which only other
    `shared` processes have too; `threads` None leaves the libraries' own choice; `environment` holds extra variables.
    """

    name: str
    node: str
    role: str
    actors: tuple[str, ...]
    devices: tuple[str, ...] = ()
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """One line of the topology: `count` actors of `role` on `node`. `shared`: its processes use the node's first
    `devices` slots together with every other shared line's; the rest is for those that want slots of their own."""

    node: str
    role: str
    count: int
    per_process: int = 1
    devices: int = 0
    threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    shared: bool = False


def roles_of(config: Mapping[str, Any]) -> set[str]:
    """Root keys that name a class: what a topology may place."""
    return {key for key, value in config.items() if isinstance(value, Mapping) and "_target_" in value}


def plan_topology(topology: object, roles: set[str]) -> tuple[tuple[ProcessPlan, ...], tuple[Problem, ...]]:
    """Processes in the order of the topology (node by node, role by role). `roles`: root keys that have a
    `_target_`."""
    problems: list[Problem] = []
    placements: list[Placement] = []
    slots: dict[str, list[str]] = {}
    nodes = topology.get("nodes") if isinstance(topology, Mapping) else None
    if not isinstance(nodes, Mapping) or not nodes:
        return (), (Problem("topology.nodes", shorten(nodes), "a mapping of node names", "choose a topology=…"),)
    assert isinstance(topology, Mapping)
    problems += _unknown_keys(topology, ("nodes",), "topology")
    for node, content in nodes.items():
        key = f"topology.nodes.{node}"
        if not isinstance(content, Mapping):
            problems.append(Problem(key, shorten(content), "a mapping with `actors`", "give it actors"))
            continue
        if not re.fullmatch(r"[A-Za-z0-9._-]+", str(node)):
            fix = "choose another: it becomes part of a file's and an actor's name"
            problems.append(Problem(key, shorten(node), "letters, digits, '.', '_' and '-'", fix))
        problems += _unknown_keys(content, NODE_KEYS, key)
        devices = content.get("devices") or []
        slots[str(node)] = [str(d) for d in devices] if isinstance(devices, list) else []
        problems += _device_problems(devices, f"{key}.devices")
        actors = content.get("actors") or {}
        if not isinstance(actors, Mapping):
            given, fix = shorten(actors), "write actors: {generator: {count: 1}, …}"
            problems.append(Problem(f"{key}.actors", given, "a mapping of roles", fix))
            continue
        for role, line in actors.items():
            placement, found = _placement(str(node), str(role), line, roles)
            problems += found
            if placement:
                placements.append(placement)
    processes, found = _processes(placements, slots)
    return (() if problems or found else processes), tuple(problems + found)


def devices_of(topology: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The device slots of each node of a topology that `plan_topology` accepts."""
    nodes = topology["nodes"]
    return {str(node): tuple(str(d) for d in content.get("devices") or ()) for node, content in nodes.items()}


def placement_of(topology: Mapping[str, Any], node: str, role: str) -> Placement:
    """That line of a topology that `plan_topology` accepts."""
    placement, _ = _placement(node, role, topology["nodes"][node]["actors"][role], {role})
    assert placement is not None
    return placement


def count_actors(processes: tuple[ProcessPlan, ...]) -> dict[str, int]:
    """Actors of each role."""
    counts: dict[str, int] = {}
    for process in processes:
        counts[process.role] = counts.get(process.role, 0) + len(process.actors)
    return counts


def _unknown_keys(given: Mapping[str, object], known: tuple[str, ...], key: str) -> list[Problem]:
    return [
        Problem(f"{key}.{name}", shorten(given[name]), listing(known), did_you_mean(str(name), known, "remove it"))
        for name in given
        if name not in known
    ]


def _device_problems(devices: object, key: str) -> list[Problem]:
    if not isinstance(devices, list):
        return [Problem(key, shorten(devices), "a list of device ids", "write it as [0, 1, …]")]
    if not all(type(d) in (int, str) and not str(d).startswith("-") for d in devices):
        return [
            Problem(key, shorten(devices), "ids: integers >= 0, or texts (a GPU's UUID)", "write them as [0, 1, …]")
        ]
    if len({str(d) for d in devices}) != len(devices):
        return [Problem(key, shorten(devices), "distinct device ids", "name each device once")]
    return []


def _placement(node: str, role: str, line: object, roles: set[str]) -> tuple[Placement | None, list[Problem]]:
    key = f"topology.nodes.{node}.actors.{role}"
    if role not in roles:
        fix = did_you_mean(role, roles, f"add a root key {role!r} with a `_target_`, or remove the line")
        return None, [Problem(key, shorten(role), listing(roles), fix)]
    if role in RESERVED_ROLES:
        fix = "choose another name for the root key"
        return None, [Problem(key, shorten(role), f"any name but {listing(RESERVED_ROLES)}", fix)]
    if not isinstance(line, Mapping):
        return None, [Problem(key, shorten(line), "a mapping with `count`", f"write {role}: {{count: 1}}")]
    problems = _unknown_keys(line, PLACEMENT_KEYS, key)
    problems += _count_problems(line, key)
    shared = line.get("shared", False)
    if not isinstance(shared, bool):
        fix = "true where learner and engines use one GPU"
        problems.append(Problem(f"{key}.shared", shorten(shared), "true or false", fix))
    variables = line.get("environment") or {}
    if not isinstance(variables, Mapping):
        fix = "write environment: {NAME: value}"
        problems.append(Problem(f"{key}.environment", shorten(variables), "a mapping of variables", fix))
    elif not all(type(value) in (str, int, float) for value in variables.values()):
        problems.append(Problem(f"{key}.environment", shorten(variables), "texts or numbers", "quote each value"))
    if problems:
        return None, problems
    environment = {str(k): str(v) for k, v in variables.items()}
    return (
        Placement(
            node=node,
            role=role,
            count=line.get("count", 1),
            per_process=line.get("per_process", 1),
            devices=line.get("devices", 0),
            threads=line.get("threads"),
            environment=environment,
            shared=bool(shared),
        ),
        [],
    )


def _count_problems(line: Mapping[str, object], key: str) -> list[Problem]:
    problems = []
    for name, least in (("count", 0), ("per_process", 1), ("devices", 0), ("threads", 1)):
        value = line.get(name)
        if name not in line or (name == "threads" and value is None):
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST_COUNT:
            allowed = f"an integer from {least} to {LARGEST_COUNT}"
            problems.append(Problem(f"{key}.{name}", shorten(value), allowed, f"give it {allowed}"))
    return problems


def _processes(
    placements: list[Placement], slots: dict[str, list[str]]
) -> tuple[tuple[ProcessPlan, ...], list[Problem]]:
    total = sum(-(-placement.count // placement.per_process) for placement in placements)
    if total > MOST_PROCESSES:
        fix = "lower the counts, or host several actors in a process with per_process"
        return (), [Problem("topology.nodes", f"{total} processes", f"at most {MOST_PROCESSES}", fix)]
    processes: list[ProcessPlan] = []
    problems: list[Problem] = []
    next_index: dict[str, int] = {}
    num_shared = {
        node: max((p.devices for p in placements if p.shared and p.node == node), default=0) for node in slots
    }
    free = {node: list(devices[num_shared[node] :]) for node, devices in slots.items()}
    for placement in placements:
        num_processes = -(-placement.count // placement.per_process)
        wanted = 0 if placement.shared else num_processes * placement.devices
        if wanted > len(free[placement.node]) or placement.devices > len(slots[placement.node]):
            key = f"topology.nodes.{placement.node}.actors.{placement.role}.devices"
            given = f"{placement.devices} for each of {num_processes} processes"
            allowed = f"{len(free[placement.node])} free of the node's {len(slots[placement.node])}"
            problems.append(Problem(key, given, allowed, f"list more in topology.nodes.{placement.node}.devices"))
            continue
        first = next_index.get(placement.role, 0)
        next_index[placement.role] = first + placement.count
        own = slots[placement.node] if placement.shared else free[placement.node]
        processes += cut_processes(placement, first, own)
        del free[placement.node][:wanted]
    return tuple(processes), problems


def cut_processes(placement: Placement, first: int, free: Sequence[str]) -> list[ProcessPlan]:
    """The processes of `placement.count` actors from index `first` on, each with its own of the `free` slots, which are
    enough, or all with the first of them where they share."""
    processes: list[ProcessPlan] = []
    for start in range(0, placement.count, placement.per_process):
        size = min(placement.per_process, placement.count - start)
        begin = 0 if placement.shared else len(processes) * placement.devices
        slots = free[begin:][: placement.devices]
        processes.append(_process(placement, first + start, size, tuple(slots)))
    return processes


def _process(placement: Placement, first: int, size: int, devices: tuple[str, ...]) -> ProcessPlan:
    last = f"-{first + size - 1}" if size > 1 else ""
    return ProcessPlan(
        name=f"{placement.role}-{first}{last}",
        node=placement.node,
        role=placement.role,
        actors=tuple(f"{placement.role}/{index}" for index in range(first, first + size)),
        devices=devices,
        threads=placement.threads,
        environment=dict(placement.environment),
        shared=placement.shared,
    )
