"""From wait reports to who is to blame."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.monitor.diagnosis import Diagnosis, deadlock, diagnose
from headrace.transport import PeerWait, TaskReport, WaitReport


def report(name: str, *waits: PeerWait, working: dict[str, float] | None = None, **fields: Any) -> WaitReport:
    given = {"tasks": (), "mailbox_waiting": 0, "oldest_waiting_s": 0.0} | fields
    return WaitReport(name=name, incarnation="i", pid=7, waits=waits, working=working or {}, **given)


def look(*reports: WaitReport, silent: dict[str, str] | None = None, **options: Any) -> Diagnosis:
    replies: dict[str, WaitReport | str] = {one.name: one for one in reports}
    return diagnose(replies | (silent or {}), quiet_s=60.0, **options)


def test_a_cycle_is_named() -> None:
    """messaging fault 22: A → B → C → A, found behind an actor that only leads to it."""
    found = look(
        report("learner/0", PeerWait("a/0", "NextBatch", 1, 90)),
        report("a/0", PeerWait("d/0", "Say", 1, 70), PeerWait("b/0", "Say", 1, 60)),
        report("b/0", PeerWait("c", "Say", 3, 50)),
        report("c/0", PeerWait("a/0", "Say", 1, 40, no_credit=True)),
        report("d/0"),
    )
    assert (found.kind, found.culprit, found.is_stall) == ("cycle", "a/0 → b/0 → c/0 → a/0", True)
    assert found.summary == (
        "a/0 waits for b/0 (Say, 60 s), which waits for c/0 (3 × Say, 50 s), which waits for a/0 "
        "(Say, 40 s, its mailbox is full): a cycle, which only a deadline ends"
    )
    assert found.lines[0] == "learner/0 waits for a/0 (NextBatch, 90 s)"


def test_only_old_asks_are_a_deadlock_beside_a_run_that_moves() -> None:
    old, young, of_a_role = PeerWait("b/0", "Say", 1, 30), PeerWait("a/0", "Say", 1, 29), PeerWait("a", "news", 1, 99)

    def found(*waits_of_b: PeerWait, silent: str = "c/0") -> Diagnosis | None:
        replies = {"a/0": report("a/0", old), "b/0": report("b/0", *waits_of_b), silent: "DeadlineExceeded"}
        return deadlock(replies, min_age_s=30)

    assert found(young) is None
    assert found(of_a_role) is None
    cycle = found(PeerWait("a/0", "Say", 1, 30))
    assert cycle is not None
    assert cycle.culprit == "a/0 → b/0 → a/0"


def test_asking_oneself_is_a_cycle() -> None:
    assert look(report("a/0", PeerWait("a/0", "Say", 1, 60))).culprit == "a/0 → a/0"


def test_who_does_not_answer_is_news() -> None:
    found = look(
        report("environment/0", PeerWait("generator/1", "Generate", 64, 58)),
        silent={"generator/0": "DeadlineExceeded: …", "generator/1": "DeadlineExceeded: no reply within 5 s"},
        pids={"generator/1": 1234},
    )
    assert (found.kind, found.culprit) == ("silent", "generator/1"), "the one that is waited for"
    assert "its event loop is blocked or its process (pid 1234) is stopped; see its log" in found.summary
    assert "kill -USR1 1234" in found.summary
    assert found.lines == (
        "environment/0 waits for generator/1 (64 × Generate, 58 s)",
        "generator/1: DeadlineExceeded: no reply within 5 s",
        "generator/0 does not answer either: DeadlineExceeded: …",
    )


def test_what_has_not_started_is_no_stall_and_what_is_gone_is() -> None:
    waits = report("learner/0", PeerWait("generator", "a live member", 1, 300))
    found = look(waits, seen={"learner"})
    assert (found.kind, found.is_stall) == ("starting", False)
    found = look(waits, seen={"learner", "generator"})
    assert (found.kind, found.culprit, found.is_stall) == ("absent", "generator", True)
    assert found.summary == (
        "learner/0 waits for generator (a live member, 300 s), which is gone and did not come back"
    )


def test_long_work_is_busy_and_short_work_explains_nothing() -> None:
    waits = report("environment/0", PeerWait("generator/0", "Generate", 8, 59))
    found = look(waits, report("generator/0", working={"decode": 59.0}))
    assert (found.kind, found.culprit, found.is_stall) == ("busy", "generator/0", False)
    assert found.summary == "generator/0 is busy: 'decode' has taken 59 s so far"
    assert look(waits, report("generator/0", working={"decode": 2.0})).kind == "waiting"


def test_the_end_of_the_chain_shows_where_it_stands() -> None:
    task = TaskReport("dispatcher/0:next_batch", "NextBatch", 1, 12.0, ("a.py:1 in run", "feeding.py:63 in next_batch"))
    found = look(
        report("learner/0", PeerWait("dispatcher/0", "NextBatch", 1, 12)),
        report("monitor/0", PeerWait("dispatcher/0", "WaitQuery", 1, 9999)),
        report("dispatcher/0", tasks=(task,), mailbox_waiting=3, oldest_waiting_s=44.0),
        asker="monitor/0",
    )
    assert (found.kind, found.culprit) == ("waiting", "dispatcher/0")
    assert found.summary == (
        "learner/0 waits for dispatcher/0 (NextBatch, 12 s), which itself waits for nobody; 3 messages wait in its "
        "mailbox, the oldest for 44 s"
    )
    assert found.lines[-1] == "dispatcher/0 handles NextBatch (12 s) at feeding.py:63 in next_batch"


def test_nobody_waits() -> None:
    assert look(report("a/0"), report("b/0")).kind == "quiet"
    assert look().kind == "quiet"


_NAMES = st.sampled_from(["a/0", "b/0", "c/0", "d/0", "e/0", "gone/0"])


@given(st.lists(st.tuples(_NAMES, _NAMES), max_size=16))
def test_a_cycle_is_found_exactly_where_there_is_one(pairs: list[tuple[str, str]]) -> None:
    """Against the slow twin: whoever reaches himself."""
    names = ["a/0", "b/0", "c/0", "d/0", "e/0"]
    edges = {(one, other) for one, other in pairs if one != "gone/0"}
    reachable = set(edges)
    for _ in names:
        reachable |= {(one, far) for one, other in reachable for near, far in edges if other == near}
    reports = [
        report(name, *(PeerWait(peer, "Say", 1, 1.0) for waiter, peer in sorted(edges) if waiter == name))
        for name in names
    ]
    assert (look(*reports).kind == "cycle") == any(one == other for one, other in reachable)
