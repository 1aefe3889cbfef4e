"""The two ends of flow control against each other, under random orders, losses and repetitions of grants."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.credit import ReceiveWindow, SendWindow


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 500),
    st.lists(st.tuples(st.sampled_from("sscgx"), st.integers(0, 200)), max_size=200),
)
def test_never_over_the_window_and_never_stuck(window: int, window_bytes: int, steps: list[tuple[str, int]]) -> None:
    sender, receiver = SendWindow(window, window_bytes), ReceiveWindow(window, window_bytes)
    mailbox: deque[int] = deque()
    grants: deque[tuple[int, int]] = deque()

    def consume() -> None:
        if receiver.consume(mailbox.popleft()):
            grants.append((receiver.consumed, receiver.consumed_bytes))

    for step, nbytes in steps:
        if step == "s" and sender.available:
            sender.spend(nbytes)
            mailbox.append(nbytes)
        elif step == "c" and mailbox:
            consume()
        elif step == "g" and grants:
            sender.grant(*grants.popleft())
        elif step == "x" and grants:
            sender.grant(*grants[-1])  # out of order, and again
        assert len(mailbox) <= window
        assert sum(mailbox) < window_bytes + 200, "the overshoot is at most one message"
    while mailbox:
        consume()
    while grants:
        sender.grant(*grants.popleft())
    assert sender.available, "what the receiver keeps untold never blocks the sender"
    assert sender.outstanding <= window // 4


def test_forged_grants_do_not_widen_the_window() -> None:
    sender = SendWindow(2, 100)
    sender.grant(1000, 1000)
    sender.spend(1)
    sender.spend(1)
    assert not sender.available
    sender.grant(-5, -5)
    assert sender.outstanding == 2
    sender.reset()
    assert sender.available


def test_a_message_larger_than_the_window_goes_alone() -> None:
    sender = SendWindow(10, 100)
    sender.spend(1_000_000)
    assert not sender.available
    receiver = ReceiveWindow(10, 100)
    assert receiver.consume(1_000_000)
    sender.grant(receiver.consumed, receiver.consumed_bytes)
    assert sender.available
