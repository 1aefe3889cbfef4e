"""Why a run stands still: from the wait reports of all actors to who waits for whom, and who is at the end. Pure.

cycle     A waits for B, which waits for A: only a deadline ends it
silent    an actor does not answer: its event loop is blocked, or its process is stopped
absent    a role or an actor is waited for that was there and is not
starting  a role is waited for that was not there yet: no stall
busy      work off the event loop has been open for most of the time: no stall, where that work takes so long
waiting   the chain ends at an actor that waits for nobody: it should have done something
quiet     nobody waits for anybody
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.transport import PeerWait, TaskReport, WaitReport

Kind = Literal["cycle", "silent", "absent", "starting", "busy", "waiting", "quiet"]
STALLED: tuple[Kind, ...] = ("cycle", "silent", "absent", "waiting", "quiet")

_SHOWN_WAITS = 8


@dataclass(frozen=True, slots=True)
class Edge:
    waiter: str
    peer: str
    wait: PeerWait

    def text(self) -> str:
        return f"{self.waiter} waits for {self.peer} ({_what(self.wait)})"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`culprit`: an actor, a role, or "a → b → a". `summary` is one sentence; `lines` are the details for a person."""

    kind: Kind
    culprit: str
    summary: str
    lines: tuple[str, ...] = ()

    @property
    def is_stall(self) -> bool:
        return self.kind in STALLED


def diagnose(
    replies: Mapping[str, WaitReport | str],
    *,
    quiet_s: float,
    asker: str = "",
    seen: Collection[str] = (),
    pids: Mapping[str, int] | None = None,
) -> Diagnosis:
    """`replies`: of every live actor, its report, or why there is none. `asker`: whose own waits are left out. `seen`:
    roles that had a member at some time. `pids`: of actors, as last heard, 0 where unknown."""
    reports = {name: reply for name, reply in replies.items() if isinstance(reply, WaitReport) and name != asker}
    edges = _edges(reports, replies)
    found = (
        _cycle(edges)
        or _silent(replies, edges, pids or {})
        or _absent(replies, edges, seen)
        or _busy(reports, edges, quiet_s)
        or _waiting(reports, edges)
        or Diagnosis("quiet", "", "nobody waits for anybody, and nothing comes")
    )
    shown = [edge.text() for edge in edges[:_SHOWN_WAITS]]
    if len(edges) > _SHOWN_WAITS:
        shown.append(f"and {len(edges) - _SHOWN_WAITS} more")
    return Diagnosis(found.kind, found.culprit, found.summary, (*shown, *found.lines))


def deadlock(replies: Mapping[str, WaitReport | str], *, min_age_s: float, asker: str = "") -> Diagnosis | None:
    """A cycle of asks each of which has waited for `min_age_s`: nobody in it goes on before a deadline, whatever moves
    elsewhere. Waits that are no asks (for news of a role) do not count."""
    reports = {name: reply for name, reply in replies.items() if isinstance(reply, WaitReport) and name != asker}
    edges = _edges(reports, replies)
    return _cycle([edge for edge in edges if "/" in edge.wait.peer and edge.wait.for_s >= min_age_s])


def _edges(reports: Mapping[str, WaitReport], replies: Mapping[str, object]) -> list[Edge]:
    """Who waits for whom, the oldest wait first. A wait on a role is one on each of its members."""
    edges = []
    for name, report in reports.items():
        for wait in report.waits:
            members = [wait.peer] if "/" in wait.peer else _members(wait.peer, replies)
            edges += [Edge(name, peer, wait) for peer in members or [wait.peer]]
    return sorted(edges, key=lambda edge: -edge.wait.for_s)


def _members(role: str, names: Collection[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(f"{role}/"))


def _cycle(edges: list[Edge]) -> Diagnosis | None:
    following: dict[str, list[Edge]] = {}
    for edge in edges:
        following.setdefault(edge.waiter, []).append(edge)
    clear: set[str] = set()  # from there no cycle is reached
    for start in following:
        path: list[Edge] = []
        branches = [iter(following[start])]
        while branches:
            step = next(branches[-1], None)
            if step is None:
                branches.pop()
                clear.add(path.pop().peer if path else start)
                continue
            on_path = [start, *(earlier.peer for earlier in path)]
            if step.peer in on_path:
                return _as_cycle([*path, step][on_path.index(step.peer) :])
            if step.peer in following and step.peer not in clear:
                path.append(step)
                branches.append(iter(following[step.peer]))
    return None


def _as_cycle(edges: list[Edge]) -> Diagnosis:
    start = min(range(len(edges)), key=lambda index: edges[index].waiter)  # so that it is always named alike
    edges = [*edges[start:], *edges[:start]]
    first = edges[0].waiter
    names = " → ".join([first, *(edge.peer for edge in edges)])
    chain = ", which ".join(f"waits for {edge.peer} ({_what(edge.wait)})" for edge in edges)
    return Diagnosis("cycle", names, f"{first} {chain}: a cycle, which only a deadline ends")


def _silent(replies: Mapping[str, WaitReport | str], edges: list[Edge], pids: Mapping[str, int]) -> Diagnosis | None:
    silent = [name for name, reply in replies.items() if isinstance(reply, str)]
    if not silent:
        return None
    name = min(silent, key=lambda one: (-_longest_wait_for(one, edges), one))
    pid = pids.get(name, 0)
    process = f"its process (pid {pid})" if pid else "its process"
    where = f"see its log; `kill -USR1 {pid}` has it write the stacks of its threads there" if pid else "see its log"
    others = [f"{one} does not answer either: {replies[one]}" for one in sorted(silent) if one != name]
    return Diagnosis(
        "silent",
        name,
        f"{name} does not answer: its event loop is blocked or {process} is stopped; {where}",
        (f"{name}: {replies[name]}", *others),
    )


def _absent(replies: Mapping[str, object], edges: list[Edge], seen: Collection[str]) -> Diagnosis | None:
    edge = next((edge for edge in edges if edge.peer not in replies), None)
    if edge is None:
        return None
    role = edge.peer.partition("/")[0]
    if role in seen:
        return Diagnosis("absent", edge.peer, f"{edge.text()}, which is gone and did not come back")
    return Diagnosis("starting", edge.peer, f"{edge.text()}, which has not started yet")


def _busy(reports: Mapping[str, WaitReport], edges: list[Edge], quiet_s: float) -> Diagnosis | None:
    """Work that began at most half of the time ago explains nothing."""
    open_work = [(for_s, name, label) for name, report in reports.items() for label, for_s in report.working.items()]
    for_s, name, label = max(open_work, default=(0.0, "", ""))
    if not name or for_s < quiet_s / 2:
        return None
    return Diagnosis("busy", name, f"{name} is busy: {label!r} has taken {for_s:.0f} s so far")


def _waiting(reports: Mapping[str, WaitReport], edges: list[Edge]) -> Diagnosis | None:
    """There is no cycle, so that each chain has an end; the one that is waited for the longest counts."""
    waiters = {edge.waiter for edge in edges}
    edge = next((edge for edge in edges if edge.peer not in waiters), None)
    if edge is None:
        return None
    report = reports.get(edge.peer)
    lines = [] if report is None else [f"{edge.peer} {_stands(task)}" for task in report.tasks if task.stack]
    backlog = ""
    if report is not None and report.mailbox_waiting:
        backlog = (
            f"; {report.mailbox_waiting} messages wait in its mailbox, the oldest for {report.oldest_waiting_s:.0f} s"
        )
    return Diagnosis(
        "waiting", edge.peer, f"{edge.text()}, which itself waits for nobody{backlog}", tuple(lines[:_SHOWN_WAITS])
    )


def _longest_wait_for(name: str, edges: list[Edge]) -> float:
    return max((edge.wait.for_s for edge in edges if edge.peer == name), default=0.0)


def _what(wait: PeerWait) -> str:
    times = f"{wait.count} × " if wait.count > 1 else ""
    full = ", its mailbox is full" if wait.no_credit else ""
    return f"{times}{wait.what}, {wait.for_s:.0f} s{full}"


def _stands(task: TaskReport) -> str:
    times = f"{task.count} × " if task.count > 1 else ""
    if task.message:
        return f"handles {times}{task.message} ({task.for_s or 0.0:.0f} s) at {task.stack[-1]}"
    return f"runs {times}{task.label.partition(':')[2] or task.label} at {task.stack[-1]}"
