"""What it takes to change the number of a role's actors in a running run: which processes join, or leave. Pure.

    generator=3:   generator/0 generator/1  ─▶  generator/2 joins            indices go upward, none is ever used twice
    generator=1:   generator/0 generator/1 generator/3  ─▶  generator/3, generator/1 leave       the highest go first

The rules are those of the start: the changed topology passes topology.py and checks.py, and device slots are those that
are free on the node now. Called by scaler.py; cli.py parses with it what a user typed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.launch.job import EXIT_BAD_CONFIG, EXIT_CODES
from headrace.launch.placement_checks import SINGLE_ROLES, check_counts, check_engines_reached
from headrace.launch.problems import did_you_mean, listing
from headrace.launch.topology import (
    LARGEST_COUNT,
    ProcessPlan,
    count_actors,
    cut_processes,
    placement_of,
    plan_topology,
    roles_of,
)


class CannotScale(Exception):
    """Why a count is not changed, for a person; `exit_code` is the command's."""

    def __init__(self, text: str, exit_code: int = EXIT_BAD_CONFIG) -> None:
        super().__init__(text)
        self.exit_code = exit_code

    @classmethod
    def now(cls, text: str) -> CannotScale:
        """The wish is a possible one, but not in the run's present state."""
        return cls(text, EXIT_CODES["failed"])


@dataclass(frozen=True, slots=True)
class Wish:
    """`count` actors of `role` in all. `node`: where the difference joins or leaves; None where the role is."""

    role: str
    count: int
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """Processes that join, in the order of their indices, or that leave, in the order in which they do."""

    joining: tuple[ProcessPlan, ...] = ()
    leaving: tuple[ProcessPlan, ...] = ()


def parse_wish(text: str, node: str | None = None) -> Wish:
    """`generator=2`. Raises CannotScale."""
    role, separator, count = text.partition("=")
    if not separator or not role:
        raise CannotScale(f"got {text!r}; give ROLE=COUNT, as in generator=2")
    if not (count.isascii() and count.isdecimal()) or not 1 <= int(count[:9]) <= LARGEST_COUNT or len(count) > 9:
        allowed = f"an integer from 1 to {LARGEST_COUNT}: a role needs at least one actor"
        raise CannotScale(f"{role}: got {count or 'nothing'}; allowed: {allowed}; as in {role}=2")
    return Wish(role, int(count), node)


def plan_steps(
    config: Mapping[str, Any],
    processes: Sequence[ProcessPlan],
    free_slots: Mapping[str, Sequence[str]],
    wish: Wish,
    *,
    next_index: int,
) -> Steps:
    """`processes`: all that stay so far, of every role; `free_slots` of each living node; `next_index`: above every one
    that the role ever had. Raises CannotScale."""
    check_role(config, wish)
    has = [process for process in processes if process.role == wish.role]
    surplus = sum(len(process.actors) for process in has) - wish.count
    nodes = config["topology"]["nodes"]
    if wish.node is not None and wish.node not in nodes:
        raise CannotScale(f"--node: got {wish.node!r}; allowed: {listing(nodes)}")
    if surplus > 0:
        steps = Steps(leaving=_leaving(has, surplus, wish))
    elif surplus < 0:
        steps = Steps(joining=_joining(config, has, free_slots, wish, num=-surplus, next_index=next_index))
    else:
        return Steps()
    _check(config, [process for process in processes if process not in steps.leaving] + [*steps.joining])
    return steps


def check_role(config: Mapping[str, Any], wish: Wish) -> None:
    """Raises CannotScale where the run has no such role, or can have but one of it."""
    roles = {str(role) for node in config["topology"]["nodes"].values() for role in node.get("actors") or {}}
    scalable = roles - set(SINGLE_ROLES)
    if wish.role in SINGLE_ROLES:
        raise CannotScale(f"{wish.role} cannot be scaled: a run has exactly one; allowed: {listing(scalable)}")
    if wish.role not in roles:
        fix = did_you_mean(wish.role, scalable, "headrace scale RUN alone shows what there is")
        raise CannotScale(f"the run has no role {wish.role!r}; allowed: {listing(scalable)}; {fix}")


def _leaving(has: Sequence[ProcessPlan], surplus: int, wish: Wish) -> tuple[ProcessPlan, ...]:
    """Whole processes, the highest indices first."""
    there = [process for process in has if wish.node in (None, process.node)]
    leaving: list[ProcessPlan] = []
    reachable = [wish.count + surplus]
    for process in sorted(there, key=_first_index, reverse=True):
        if surplus <= 0:
            break
        leaving.append(process)
        surplus -= len(process.actors)
        reachable.append(reachable[-1] - len(process.actors))
    if surplus > 0:
        raise CannotScale(
            f"{wish.role}={wish.count}: node {wish.node} has only {sum(len(p.actors) for p in there)} of them; "
            f"allowed there: {reachable[-1]} or more; leave --node out, or choose another"
        )
    if surplus < 0:
        counts = " or ".join(str(count) for count in reachable[-2:] if count > 0)
        raise CannotScale(
            f"{wish.role}={wish.count}: {leaving[-1].name} holds {len(leaving[-1].actors)} actors and ends as a whole; "
            f"allowed near it: {counts}"
        )
    return tuple(leaving)


def _joining(
    config: Mapping[str, Any],
    has: Sequence[ProcessPlan],
    free_slots: Mapping[str, Sequence[str]],
    wish: Wish,
    *,
    num: int,
    next_index: int,
) -> tuple[ProcessPlan, ...]:
    topology = config["topology"]
    lines = [node for node, content in topology["nodes"].items() if wish.role in (content.get("actors") or {})]
    node = wish.node or _only_node(wish, sorted({process.node for process in has} or lines))
    if node not in free_slots:
        raise CannotScale.now(
            f"node {node} is lost; allowed: {listing(free_slots)}; wait for its return, or use --node"
        )
    line = placement_of(topology, node if node in lines else lines[0], wish.role)
    placement = replace(line, node=node, count=num)
    free = (
        [str(device) for device in topology["nodes"][node].get("devices") or ()]
        if placement.shared
        else free_slots[node]
    )
    wanted = placement.devices * (1 if placement.shared else -(-num // placement.per_process))
    if wanted > len(free):
        all_slots = len(topology["nodes"][node].get("devices") or ())
        raise CannotScale(
            f"{wish.role}={wish.count}: no free devices on node {node} for {num} more: "
            f"{wanted} are needed, {len(free)} of its {all_slots} are free; ask for fewer, or use another --node"
        )
    return tuple(cut_processes(placement, next_index, free))


def _only_node(wish: Wish, nodes: Sequence[str]) -> str:
    if len(nodes) > 1:
        raise CannotScale(f"{wish.role} runs on {len(nodes)} nodes; say where with --node; allowed: {listing(nodes)}")
    return nodes[0]


def _check(config: Mapping[str, Any], processes: Sequence[ProcessPlan]) -> None:
    """The rules of the start, for the topology as it will be."""
    topology = copy.deepcopy(dict(config["topology"]))
    for node, content in topology["nodes"].items():
        counts = count_actors(tuple(process for process in processes if process.node == node))
        actors = content["actors"] = dict(content.get("actors") or {})
        for role, line in actors.items():
            actors[role] = {**line, "count": counts.pop(role, 0)}
        for role, count in counts.items():
            actors[role] = {"count": count}
    _, problems = plan_topology(topology, roles_of(config))
    found = [*problems, *check_counts(tuple(processes), config), *check_engines_reached(processes, config)]
    if found:
        raise CannotScale("the run cannot become so: " + "; ".join(map(str, found)))


def _first_index(process: ProcessPlan) -> int:
    return int(process.actors[0].partition("/")[2])
