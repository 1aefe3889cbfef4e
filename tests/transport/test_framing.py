"""Frames over a byte stream: whatever the pieces in which the bytes come, the messages come out whole and in order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.errors import CorruptFrame
from headrace.transport.framing import MessageReader, pack_message

SIZES = st.one_of(
    st.integers(0, 40), st.integers(16_000, 17_000), st.integers(65_000, 66_000), st.integers(260_000, 270_000)
)
MESSAGES = st.lists(st.lists(st.tuples(SIZES, st.integers(0, 255)), min_size=1, max_size=4), max_size=12)


def feed(reader: MessageReader, data: bytes, cuts: list[int]) -> list[list[bytes]]:
    """Give the bytes in pieces of at most these lengths, over and over."""
    messages = []
    position = turn = 0
    while position < len(data):
        buffer = reader.buffer()
        num = min(len(buffer), len(data) - position, cuts[turn % len(cuts)])
        buffer[:num] = data[position : position + num]
        messages += [[bytes(frame) for frame in frames] for frames in reader.received(num)]
        position += num
        turn += 1
    return messages


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.lists(st.sampled_from([1, 7, 8, 9, 1000, 65_536, 300_000]), min_size=1, max_size=5))
def test_messages_come_out_as_they_went_in(sizes: list[list[tuple[int, int]]], cuts: list[int]) -> None:
    if min(cuts) < 1000 and sum(size for message in sizes for size, _ in message) > 300_000:
        cuts = [max(cut, 1000) for cut in cuts]
    messages = [[bytes([fill]) * size for size, fill in message] for message in sizes]
    stream = b"".join(bytes(piece) for message in messages for piece in pack_message(message))
    assert feed(MessageReader(1 << 20), stream, cuts) == messages


def test_a_frame_above_the_limit_ends_the_stream() -> None:
    reader = MessageReader(1000)
    stream = b"".join(bytes(piece) for piece in pack_message([bytes(1001)]))
    with pytest.raises(CorruptFrame, match="1001 bytes came, the limit is 1000"):
        feed(reader, stream, [500])


def test_a_message_of_endless_frames_ends_the_stream() -> None:
    reader = MessageReader(1000)
    with pytest.raises(CorruptFrame, match="more than 65536 frames"):
        feed(reader, (1).to_bytes(8, "little") * 70_000, [65_536])


def test_what_was_received_cannot_be_changed() -> None:
    reader = MessageReader(1 << 20)
    data = b"".join(bytes(piece) for piece in pack_message([b"head", bytes(100_000)]))
    received: list[list[bytes | memoryview]] = []
    position = 0
    while position < len(data):
        buffer = reader.buffer()
        num = min(len(buffer), len(data) - position)
        buffer[:num] = data[position : position + num]
        received += reader.received(num)
        position += num
    frame = memoryview(received[0][1])
    assert frame.readonly
    assert frame.nbytes == 100_000
