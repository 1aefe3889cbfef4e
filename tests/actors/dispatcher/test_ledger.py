"""The ledger: the invariant under every sequence of transitions, and transitions that do not exist."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.actors.dispatcher.ledger import _NEXT, DropReason, Ledger, LedgerImbalance, SessionState
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task

TASK = Task("t", "s", (ChatMessage("user", "x"),))


def spec(number: int) -> SessionSpec:
    return SessionSpec(f"s{number}", "g", number, "train", TASK, Sampling())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(SessionState), st.sampled_from(DropReason)), max_size=200))
def test_balances_after_every_transition_and_refuses_the_others(
    moves: list[tuple[int, SessionState, DropReason]],
) -> None:
    ledger = Ledger()
    expected: dict[int, SessionState] = {}
    for number, state, reason in moves:
        if number not in expected:
            ledger.issue(spec(number), now_s=0.0)
            expected[number] = SessionState.RUNNING
        drop = reason if state is SessionState.DROPPED else None
        if state in _NEXT.get(expected[number], ()):
            ledger.move(f"s{number}", state, drop)
            expected[number] = state
        else:
            with pytest.raises(LedgerImbalance):
                ledger.move(f"s{number}", state, drop)
        counts = ledger.snapshot()
        assert counts["issued"] == sum(counts[s] for s in SessionState)
        assert counts["dropped"] == sum(counts[f"dropped_{r}"] for r in DropReason)
        assert all(counts[s] == list(expected.values()).count(s) for s in SessionState)


def test_a_session_is_issued_once_and_ends_once() -> None:
    ledger = Ledger()
    ledger.issue(spec(0), now_s=0.0)
    with pytest.raises(LedgerImbalance, match="issued already"):
        ledger.issue(spec(0), now_s=1.0)
    ledger.move("s0", SessionState.DROPPED, DropReason.LOST)
    assert "s0" not in ledger
    with pytest.raises(LedgerImbalance, match="ended or was never issued"):
        ledger.move("s0", SessionState.DROPPED, DropReason.LOST)


def test_a_drop_and_only_a_drop_has_a_reason() -> None:
    ledger = Ledger()
    ledger.issue(spec(0), now_s=0.0)
    with pytest.raises(LedgerImbalance, match="reason"):
        ledger.move("s0", SessionState.DROPPED)
    with pytest.raises(LedgerImbalance, match="reason"):
        ledger.move("s0", SessionState.GRADING, DropReason.FAILED)
