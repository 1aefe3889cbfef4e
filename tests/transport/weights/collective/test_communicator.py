"""What every communicator promises, and that no fault of a rank is more than a deadline at the others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from groups import BUCKET_BYTES, LONG_S, NUM_RANKS, SHORT_S, devices, joined

from headrace.transport.weights.collective.communicator import GroupBroken, join, make_unique_id, resolve

MEMBER = Path(__file__).with_name("member.py")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(NUM_RANKS) as pool:
        yield pool


def until(seconds: float) -> float:
    return time.monotonic() + seconds


def test_every_rank_gets_the_roots_bytes_in_the_order_of_the_calls(backend: str, pool: ThreadPoolExecutor) -> None:
    """Sizes below, at and far above a slot's; several under way at once."""
    group = joined(backend, pool)
    sizes = [1, 24, BUCKET_BYTES, 3 * BUCKET_BYTES + 7, BUCKET_BYTES - 1]
    sent = [torch.randint(0, 256, (size,), dtype=torch.uint8, device=group.devices[0]) for size in sizes]
    got = [[torch.zeros(size, dtype=torch.uint8, device=d) for size in sizes] for d in group.devices[1:NUM_RANKS]]
    works = [
        [communicator.broadcast(buffer) for buffer in buffers]
        for communicator, buffers in zip(group.ranks, [sent, *got], strict=True)
    ]
    for work in (work for works_of in works for work in works_of):
        work.wait(until(LONG_S))
        assert work.done()
    for buffers in got:
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(sent, buffers, strict=True))
    group.close()


def test_a_group_is_told_its_ranks_and_warms_up_as_vllms_does(backend: str, pool: ThreadPoolExecutor) -> None:
    group = joined(backend, pool)
    assert [(c.rank, c.world_size) for c in group.ranks] == [(rank, NUM_RANKS) for rank in range(NUM_RANKS)]
    for done in [pool.submit(communicator.all_reduce_one, until(LONG_S)) for communicator in group.ranks]:
        done.result()
    group.close()


def test_who_never_joins_is_a_deadline_that_names_it(pool: ThreadPoolExecutor) -> None:
    unique_id = make_unique_id("memory")
    joining = [
        pool.submit(join, "memory", unique_id, rank=rank, world_size=3, timeout_s=SHORT_S, bucket_bytes=BUCKET_BYTES)
        for rank in (0, 2)
    ]
    said = []
    for future in joining:
        with pytest.raises(GroupBroken) as broken:
            future.result()
        said.append(str(broken.value))
    assert any("ranks [1] of 3 have not joined at the deadline" in text for text in said), said


def test_where_rank_0_never_comes_the_others_say_so(backend: str) -> None:
    with pytest.raises(GroupBroken, match=r"rank 0 has not joined at the deadline|had not come up"):
        join(backend, make_unique_id(backend), rank=1, world_size=2, timeout_s=SHORT_S, device=devices(backend)[1])


def test_a_join_is_cancelled_from_another_thread(backend: str, pool: ThreadPoolExecutor) -> None:
    cancelled = threading.Event()
    future = pool.submit(
        join, backend, make_unique_id(backend), rank=1, world_size=2, timeout_s=LONG_S, device=devices(backend)[1],
        cancelled=cancelled,
    )  # fmt: skip
    cancelled.set()
    with pytest.raises(GroupBroken):
        future.result(timeout=LONG_S / 2)


def test_ranks_that_disagree_on_their_number_find_out(pool: ThreadPoolExecutor) -> None:
    unique_id = make_unique_id("memory")
    root = pool.submit(
        join, "memory", unique_id, rank=0, world_size=2, timeout_s=SHORT_S, bucket_bytes=BUCKET_BYTES
    )  # fmt: skip
    with pytest.raises(GroupBroken, match="rank 1 expects 3 ranks, rank 0 2"):
        join("memory", unique_id, rank=1, world_size=3, timeout_s=LONG_S)
    with pytest.raises(GroupBroken):
        root.result()


def test_a_slow_rank_is_a_deadline_and_the_same_bytes_where_it_comes_in_time(
    backend: str, pool: ThreadPoolExecutor
) -> None:
    group = joined(backend, pool)
    root, quick, slow = group.ranks
    sent = torch.arange(8 * BUCKET_BYTES, device=group.devices[0]).to(torch.uint8)
    buffers = [torch.zeros(8 * BUCKET_BYTES, dtype=torch.uint8, device=d) for d in group.devices[1:3]]
    work = root.broadcast(sent)
    others = quick.broadcast(buffers[0])
    for waiting in (work, others):
        with pytest.raises(GroupBroken, match="not done at the deadline"):
            waiting.wait(until(SHORT_S))
    late = slow.broadcast(buffers[1])
    for waiting in (late, work, others):
        waiting.wait(until(LONG_S))
    assert all(torch.equal(sent.cpu(), buffer.cpu()) for buffer in buffers)
    group.close()


def test_another_size_than_the_roots_is_refused_not_taken_for_weights(pool: ThreadPoolExecutor) -> None:
    group = joined("memory", pool)
    group.ranks[0].broadcast(torch.ones(100, dtype=torch.uint8))
    buffer = torch.zeros(60, dtype=torch.uint8)
    with pytest.raises(GroupBroken, match="expects 60 bytes as message 0, rank 0 sent 100"):
        group.ranks[1].broadcast(buffer).wait(until(LONG_S))
    assert not buffer.any()
    group.close()


@pytest.mark.parametrize("who", range(NUM_RANKS))
def test_abort_at_any_rank_ends_every_wait(backend: str, pool: ThreadPoolExecutor, who: int) -> None:
    """For shared memory one abort reaches all; with NCCL each member is told to abort its own."""
    group = joined(backend, pool)
    waiting = [
        communicator.broadcast(torch.zeros(8 * BUCKET_BYTES, dtype=torch.uint8, device=device))
        for communicator, device in list(zip(group.ranks, group.devices, strict=False))[: NUM_RANKS - 1]
    ]
    ended = [pool.submit(work.wait, until(LONG_S)) for work in waiting]
    for communicator in [group.ranks[who]] if backend == "memory" else group.ranks:
        communicator.abort()
        communicator.abort()  # idempotent
    for future in ended:
        with pytest.raises(GroupBroken):
            future.result(timeout=LONG_S / 2)
    for communicator in group.ranks:
        with pytest.raises(GroupBroken):
            communicator.check()
    group.close()
    group.close()
    with pytest.raises(GroupBroken):
        group.ranks[0].broadcast(torch.zeros(1, dtype=torch.uint8, device=group.devices[0]))


def test_a_rank_that_is_killed_in_the_middle_of_a_bucket_is_a_deadline_and_the_rest_go_on(
    pool: ThreadPoolExecutor,
) -> None:
    """A real process and SIGKILL. What it was to get in one piece rank 0 sends in two, so that it dies between them."""
    first, rest = 8 * BUCKET_BYTES, 24 * BUCKET_BYTES
    unique_id = make_unique_id("memory")
    arguments = [unique_id.decode(), "1", "3", str(first + rest), str(first)]
    child = subprocess.Popen([sys.executable, str(MEMBER), *arguments])
    options = {"world_size": 3, "timeout_s": LONG_S, "bucket_bytes": BUCKET_BYTES}
    joining = [pool.submit(join, "memory", unique_id, rank=rank, **options) for rank in (0, 2)]
    root, survivor = (future.result() for future in joining)
    got = torch.zeros(first + rest, dtype=torch.uint8)
    others = survivor.broadcast(got)
    root.broadcast(torch.ones(first, dtype=torch.uint8)).wait(until(LONG_S))
    assert child.wait(timeout=LONG_S) == -9
    work = root.broadcast(torch.ones(rest, dtype=torch.uint8))
    with pytest.raises(GroupBroken, match="not done at the deadline"):
        work.wait(until(SHORT_S))
    root.abort()
    with pytest.raises(GroupBroken, match="aborted by rank 0"):
        others.wait(until(LONG_S))
    assert first <= int(got.sum()) < first + rest, "the survivor came further, and is told that it has not all"
    for communicator in (root, survivor):
        communicator.destroy()
    again = joined("memory", pool, num_ranks=2)
    buffer = torch.zeros(first, dtype=torch.uint8)
    taken = again.ranks[1].broadcast(buffer)
    again.ranks[0].broadcast(torch.ones(first, dtype=torch.uint8)).wait(until(LONG_S))
    taken.wait(until(LONG_S))
    assert buffer.all()
    again.close()


def test_an_id_is_used_once(tmp_path: Path) -> None:
    """And a file that has its number by then is not touched."""
    unique_id = make_unique_id("memory")
    options = {"world_size": 1, "timeout_s": LONG_S, "bucket_bytes": BUCKET_BYTES}
    join("memory", unique_id, rank=0, **options).destroy()
    number = int(unique_id.rpartition(b":")[0].rpartition(b"/")[2])
    (tmp_path / "other").write_bytes(b"somebody else's")
    with open(tmp_path / "other", "r+b") as other:
        if other.fileno() != number:
            os.dup2(other.fileno(), number)
        for _ in range(2):
            with pytest.raises(GroupBroken, match="made by another process, or used before"):
                join("memory", unique_id, rank=0, **options)
        assert os.fstat(number).st_size == len(b"somebody else's")
        if other.fileno() != number:
            os.close(number)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "unique_id", [b"", b"\xff" * 128, b"/proc/1/fd/x:1", b"/proc/1/fd/3", b"/etc/passwd:7", b"/proc/1/fd/3:-1"]
)
def test_what_is_no_id_breaks_the_group_and_closes_nothing(unique_id: bytes, rank: int) -> None:
    with pytest.raises(GroupBroken, match="is no id of a group"):
        join("memory", unique_id, rank=rank, world_size=2, timeout_s=LONG_S, bucket_bytes=BUCKET_BYTES)


@pytest.mark.parametrize("bucket_bytes", [1 << 61, 1 << 80])
def test_a_size_that_cannot_be_breaks_the_group(bucket_bytes: int) -> None:
    with pytest.raises(GroupBroken, match="bytes of memory for a group"):
        join("memory", make_unique_id("memory"), rank=0, world_size=1, timeout_s=LONG_S, bucket_bytes=bucket_bytes)


def test_a_backend_that_is_unknown_is_named() -> None:
    with pytest.raises(ValueError, match=r"weights.communicator must be auto, cupy or memory, got 'gloo'"):
        resolve("gloo")
    assert resolve("memory") == "memory"
    assert resolve("auto") == ("cupy" if torch.cuda.is_available() else "memory")
