"""A version through a group: whole, verified, and never half of one taken for the other; one process's place in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from groups import BUCKET_BYTES, LONG_S, SHORT_S, Group, joined, version

from headrace.transport.weights import WeightsMismatch
from headrace.transport.weights.collective.communicator import GroupBroken, make_unique_id
from headrace.transport.weights.collective.passage import Progress, receive, send
from headrace.transport.weights.collective.rank import Rank


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def group(pool: ThreadPoolExecutor) -> Iterator[Group]:
    group = joined("memory", pool)
    yield group
    group.close()


def test_versions_one_after_the_other_in_one_group(group: Group, pool: ThreadPoolExecutor) -> None:
    for number in (1, 2):
        manifest, buffer = version(number, seed=number)
        got = [torch.zeros_like(buffer) for _ in range(2)]
        progress = [Progress() for _ in range(3)]
        receiving = [
            pool.submit(receive, group.ranks[rank], manifest, got[rank - 1], timeout_s=LONG_S, progress=progress[rank])
            for rank in (1, 2)
        ]
        send(group.ranks[0], manifest, buffer, timeout_s=LONG_S, progress=progress[0])
        assert all(future.result() >= 0 for future in receiving)
        assert all(torch.equal(buffer, other) for other in got)
        assert [p.num_buckets for p in progress] == [len(manifest.buckets)] * 3


def test_a_byte_that_changed_after_the_seal_is_named_and_hurts_nobody_else(
    group: Group, pool: ThreadPoolExecutor
) -> None:
    manifest, buffer = version(1)
    buffer[BUCKET_BYTES + 5] ^= 0x10
    receiving = [
        pool.submit(receive, c, manifest, torch.zeros_like(buffer), timeout_s=LONG_S, progress=Progress())
        for c in group.ranks[1:]
    ]
    send(group.ranks[0], manifest, buffer, timeout_s=LONG_S, progress=Progress())
    for future in receiving:
        with pytest.raises(WeightsMismatch, match=r"bad checksums in 1 of 6: bucket 1 \[65536, 131072\)"):
            future.result()
    assert [c.check() for c in group.ranks] == [None] * 3  # the group is whole


@pytest.mark.parametrize("other", ["version", "order"])
def test_a_receiver_that_goes_by_another_manifest_finds_out_before_the_first_bucket(
    group: Group, pool: ThreadPoolExecutor, other: str
) -> None:
    manifest, buffer = version(3)
    changed = replace(manifest, version=4) if other == "version" else replace(manifest, buckets=manifest.buckets[::-1])
    got = torch.zeros_like(buffer)
    sending = pool.submit(send, group.ranks[0], manifest, buffer, timeout_s=SHORT_S, progress=Progress())
    with pytest.raises(WeightsMismatch, match="the sender has begun version 3, this rank expects"):
        receive(group.ranks[1], changed, got, timeout_s=LONG_S, progress=Progress())
    assert not got.any()
    with pytest.raises(GroupBroken):
        sending.result()


def test_progress_tells_who_hung(group: Group, pool: ThreadPoolExecutor) -> None:
    """Rank 2 takes one bucket and no more; at the deadline it has the fewest."""
    manifest, buffer = version(1, nbytes=40 * BUCKET_BYTES)
    progress = [Progress() for _ in range(3)]
    short = replace(manifest, buckets=manifest.buckets)
    sending = pool.submit(send, group.ranks[0], manifest, buffer, timeout_s=1.0, progress=progress[0])
    receiving = pool.submit(
        receive, group.ranks[1], short, torch.zeros_like(buffer), timeout_s=1.0, progress=progress[1]
    )
    group.ranks[2].broadcast(torch.zeros(24, dtype=torch.uint8))  # the title
    group.ranks[2].broadcast(torch.zeros(BUCKET_BYTES, dtype=torch.uint8))
    for future in (sending, receiving):
        with pytest.raises(GroupBroken):
            future.result()
    assert progress[1].num_buckets >= 2 > progress[2].num_buckets


class TestRank:
    def join(self, pool: ThreadPoolExecutor, group: str) -> tuple[Rank, Rank]:
        ranks = Rank(bucket_bytes=BUCKET_BYTES), Rank(bucket_bytes=BUCKET_BYTES)
        unique_id = make_unique_id("memory")
        for done in [
            pool.submit(rank.join, group, "memory", unique_id, rank=index, world_size=2, timeout_s=LONG_S)
            for index, rank in enumerate(ranks)
        ]:
            done.result()
        return ranks

    def test_a_group_is_kept_until_another_is_wanted(self, pool: ThreadPoolExecutor) -> None:
        root, other = self.join(pool, "a")
        root.keep(["a"])
        assert root.communicator("a").world_size == 2
        root.keep(["b"])
        for rank in (root, other):
            with pytest.raises(GroupBroken):
                rank.communicator("a").check()
        other.close()

    def test_an_abort_ends_a_join_under_way(self, pool: ThreadPoolExecutor) -> None:
        rank = Rank(bucket_bytes=BUCKET_BYTES)
        joining = pool.submit(
            rank.join, "a", "memory", make_unique_id("memory"), rank=0, world_size=2, timeout_s=LONG_S
        )
        rank.abort("a")
        with pytest.raises(GroupBroken):
            joining.result(timeout=LONG_S / 2)

    def test_an_abort_that_overtakes_its_join_is_not_forgotten(self) -> None:
        rank = Rank(bucket_bytes=BUCKET_BYTES)
        rank.abort("a")
        with pytest.raises(GroupBroken, match="aborted before it was joined"):
            rank.join("a", "memory", make_unique_id("memory"), rank=0, world_size=1, timeout_s=LONG_S)

    def test_an_abort_ends_a_passage_under_way(self, pool: ThreadPoolExecutor) -> None:
        manifest, buffer = version(1, nbytes=40 * BUCKET_BYTES)
        root, other = self.join(pool, "a")
        begun = threading.Event()

        def sends() -> None:
            communicator = root.communicator("a")
            begun.set()
            send(communicator, manifest, buffer, timeout_s=LONG_S, progress=Progress())

        sending = pool.submit(sends)
        begun.wait()
        other.abort("a")
        with pytest.raises(GroupBroken):
            sending.result(timeout=LONG_S / 2)
        root.close()
