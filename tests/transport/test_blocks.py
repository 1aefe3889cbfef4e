"""Memory that two processes share: what lies in it stays until nobody looks at it any more, whatever the order."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.transport.blocks import MAX_ARRAYS, MAX_BLOCKS, Locator, ReceiveBlocks, SendBlocks
from headrace.transport.cuts import Cuts
from headrace.transport.errors import CorruptFrame
from headrace.transport.network import Frame

PAGE = 4096


def shared(capacity_bytes: int) -> tuple[SendBlocks, ReceiveBlocks]:
    sender = SendBlocks("me", capacity_bytes)
    return sender, ReceiveBlocks("me", sender.locator)


def filled(size: int, value: int) -> memoryview:
    return np.full(size, value % 256, np.uint8).data


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_what_is_looked_at_never_changes_and_what_is_not_is_used_again(data: st.DataObject) -> None:
    capacity = data.draw(st.sampled_from([PAGE, 16 * PAGE, 64 * PAGE]))
    sender, receiver = shared(capacity)
    held: dict[int, list[memoryview]] = {}
    sizes_of = st.lists(st.integers(1, capacity // 3), min_size=1, max_size=4)
    for number in range(data.draw(st.integers(1, 40))):
        sizes = data.draw(sizes_of)
        place = sender.put([filled(size, number + index) for index, size in enumerate(sizes)])
        if place is not None:
            held[number] = receiver.take(place)  # type: ignore[assignment]
            assert [len(view) for view in held[number]] == sizes
        for gone in data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []:
            held.pop(gone, None)
        assert all(
            view == filled(len(view), kept + index) for kept, views in held.items() for index, view in enumerate(views)
        )
    held.clear()
    assert sender.put([filled(capacity, 1)]) is not None  # all of it is free again, whatever it was cut into


def test_a_receiver_that_takes_at_once_needs_one_block_however_much_flows() -> None:
    sender, receiver = shared(1 << 20)
    places = set()
    for number in range(1000):
        place = sender.put([filled(100_000, number)])
        assert place is not None
        assert receiver.take(place) == [filled(100_000, number)]
        places.add(tuple(place))
    assert len(places) == 1


@pytest.mark.parametrize("size", [40_000, 500_000])
def test_what_somebody_keeps_does_not_shut_out_other_sizes(size: int) -> None:
    sender, receiver = shared(1 << 20)
    # All of it is cut into blocks of this size.
    held = [receiver.take(place) for place in iter(lambda: sender.put([filled(100_000, 1)]), None)]
    kept = held[0]
    del held
    for number in range(100):
        place = sender.put([filled(size, number)])
        assert place is not None
        assert receiver.take(place) == [filled(size, number)]
    assert sender.put([filled(1_000_000, 1)]) is None
    assert kept == [filled(100_000, 1)]


def test_a_flow_of_another_size_takes_over_what_the_last_one_cut() -> None:
    sender, receiver = shared(1 << 20)
    for view in [receiver.take(place) for place in iter(lambda: sender.put([filled(30_000, 1)]), None)]:
        assert view == [filled(30_000, 1)]
    del view
    under_way: deque[list[Frame]] = deque(maxlen=3)  # one at least is always in use
    for number in range(100):
        place = sender.put([filled(200_000, number)])
        assert place is not None
        under_way.append(receiver.take(place))
        assert all(view == filled(200_000, number - age) for age, (view,) in enumerate(reversed(under_way)))


def test_more_arrays_than_a_place_may_name_go_elsewhere() -> None:
    sender, _ = shared(1 << 20)
    assert sender.put([filled(1, 1)] * MAX_ARRAYS) is not None
    assert sender.put([filled(1, 1)] * (MAX_ARRAYS + 1)) is None


def test_one_view_keeps_the_block_of_all() -> None:
    sender, receiver = shared(2 * PAGE)
    place = sender.put([filled(PAGE, 1), filled(PAGE, 2)])
    assert place is not None
    first, second = receiver.take(place)
    array = np.frombuffer(second, np.uint16).reshape(2, -1)
    del first, second
    assert sender.put([filled(1, 9)]) is None
    assert (array == 0x0202).all()
    del array
    assert sender.put([filled(1, 9)]) is not None


def test_views_cannot_be_written_and_outlive_both_ends() -> None:
    sender, receiver = shared(PAGE)
    place = sender.put([filled(PAGE, 7)])
    assert place is not None
    (view,) = receiver.take(place)
    assert view.readonly  # type: ignore[union-attr]
    sender.close()
    del sender, receiver
    assert view == filled(PAGE, 7)


def test_no_more_blocks_than_the_first_page_can_tell() -> None:
    sender, receiver = shared((MAX_BLOCKS + 8) * PAGE)
    views = []
    for number in range(MAX_BLOCKS):
        place = sender.put([filled(10, number)])
        assert place is not None
        views.append(receiver.take(place))
    assert sender.put([filled(10, 0)]) is None
    assert all(view == filled(10, number) for number, (view,) in enumerate(views))


def test_what_a_forked_child_drops_stays_its_parents() -> None:
    sender, receiver = shared(PAGE)
    place = sender.put([filled(PAGE, 5)])
    assert place is not None
    views = receiver.take(place)
    child = os.fork()
    if child == 0:
        views.clear()
        os._exit(0)
    os.waitpid(child, 0)
    assert sender.put([filled(1, 1)]) is None
    assert views == [filled(PAGE, 5)]


@pytest.mark.parametrize(
    "place",
    [
        [],
        [0],
        [0, 0],
        [0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, *[1] * (MAX_ARRAYS + 1)],
        [0, 0, PAGE + 1],
        [0, PAGE, 1],
        [MAX_BLOCKS, 0, 1],
        [-1, 0, 1],
        [0, 0, "x"],
        [0, 0, True],
    ],
)
def test_a_place_that_cannot_be_is_refused(place: list[object]) -> None:
    _, receiver = shared(PAGE)
    with pytest.raises(CorruptFrame):
        receiver.take(place)


class TestWhoseMemoryItIs:
    def test_of_another_incarnation(self) -> None:
        sender = SendBlocks("me", PAGE)
        with pytest.raises(CorruptFrame, match="is not you's"):
            ReceiveBlocks("you", sender.locator)

    def test_a_file_or_a_pipe(self) -> None:
        reader, writer = os.pipe()
        try:
            with pytest.raises(CorruptFrame):
                ReceiveBlocks("me", Locator(os.getpid(), reader, PAGE))
        finally:
            os.close(reader)
            os.close(writer)

    def test_nothing(self) -> None:
        sender = SendBlocks("me", PAGE)
        sender.mapped()
        with pytest.raises((OSError, CorruptFrame)):
            ReceiveBlocks("me", sender.locator)

    @pytest.mark.parametrize("capacity", [0, -1, PAGE + 1, 1 << 60])
    def test_smaller_than_it_says(self, capacity: int) -> None:
        sender = SendBlocks("me", PAGE)
        with pytest.raises(CorruptFrame):
            ReceiveBlocks("me", replace(sender.locator, capacity_bytes=capacity))

    def test_one_that_could_be_cut(self) -> None:
        descriptor = os.memfd_create("headrace-me", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, 2 * PAGE)
            with pytest.raises(CorruptFrame, match="could become so"):
                ReceiveBlocks("me", Locator(os.getpid(), descriptor, PAGE))
        finally:
            os.close(descriptor)


def test_the_descriptors_go_with_the_memory() -> None:
    before = len(os.listdir("/proc/self/fd"))
    sender, receiver = shared(PAGE)
    place = sender.put([filled(10, 1)])
    assert place is not None
    views = receiver.take(place)
    sender.close()
    del sender, receiver, views
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_mapping_is_as_large_as_its_owner_said() -> None:
    sender = SendBlocks("me", 3 * PAGE)
    with pytest.raises(OSError):
        os.ftruncate(sender.locator.descriptor, PAGE)
    assert mmap.mmap(sender.locator.descriptor, 0).size() == 4 * PAGE


def test_blocks_are_freed_by_another_process_while_the_memory_is_cut(tmp_path: Path) -> None:
    """numpy counts, then fills: flags that went meanwhile raised RuntimeError in whoever sent an array."""
    flags = np.memmap(tmp_path / "flags", np.uint8, "w+", shape=(MAX_BLOCKS,))
    child = os.fork()
    if child == 0:
        while True:
            flags[::2] ^= 1
    try:
        flags[1::2] = 1
        cuts = Cuts(MAX_BLOCKS * PAGE, flags)
        for _ in range(3000):
            cuts.free_block(2 * PAGE)
            cuts.free_block(3 * PAGE)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_blocks_in_use_never_overlap(data: st.DataObject) -> None:
    capacity, num = data.draw(st.integers(4, 40)) * PAGE, data.draw(st.integers(1, 12))
    flags = np.zeros(num, np.uint8)
    cuts = Cuts(capacity, flags)
    held: dict[int, tuple[int, int]] = {}
    for _ in range(data.draw(st.integers(1, 60))):
        size = data.draw(st.integers(1, capacity))
        block = cuts.free_block(size)
        if block is not None:
            number, begin = block
            assert number not in held
            assert begin + size <= capacity
            assert all(begin + size <= low or high <= begin for low, high in held.values())
            held[number], flags[number] = (begin, begin + size), 1
        for number in data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []:
            del held[number]
            flags[number] = 0
    flags[:] = 0
    assert cuts.free_block(capacity // 2) is not None


def test_a_lease_on_the_memory_holds_nobody_up() -> None:
    """The kernel would have whoever opens it wait for 45 s."""
    descriptor = os.memfd_create("headrace-me", os.MFD_ALLOW_SEALING)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel asks for the lease back
    try:
        os.ftruncate(descriptor, 2 * PAGE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        writable, descriptor = descriptor, os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        os.close(writable)  # no lease is given beside one that may write
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        with pytest.raises(BlockingIOError):
            ReceiveBlocks("me", Locator(os.getpid(), descriptor, PAGE))
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)
