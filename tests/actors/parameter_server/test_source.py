"""What the source of the weights hands out: checked buckets, deltas upon what it kept; and how much it keeps."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.messages import FetchBucket
from headrace.actors.parameter_server.source import WeightSource
from headrace.transport.weights import Manifest, SenderSettings, WeightSender, make_sender
from headrace.transport.weights.delta import decode, runs_of

NODE = "training"


@pytest.fixture
def sender() -> Iterator[WeightSender]:
    settings = SenderSettings(run_id=f"source-{secrets.token_hex(4)}", bucket_bytes=4096, node=NODE)
    made = make_sender("stream", settings)
    yield made
    made.close()


def published(source: WeightSource, sender: WeightSender, version: int, *, size: int = 5000) -> Manifest:
    """A version whose element i is i, but for one that is the version's number."""
    weights = torch.arange(size, dtype=torch.float32)
    weights[1500] = -version
    staged = sender.stage({"w": weights}, version=version, step=version)
    assert staged is not None
    manifest = staged.seal()
    source.publish(manifest)
    return manifest


def ask(version: int, index: int = 1, **other: Any) -> FetchBucket:
    return FetchBucket(version, index, **{"below": False, "base": None, "keep": True, **other})


def test_a_bucket_is_whole_then_a_delta_upon_what_was_kept(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    manifest = published(source, sender, 1)
    first = source.bucket(ask(1), NODE)
    assert (first.kind, len(first.data)) == ("full", 4096)
    published(source, sender, 2)
    second = source.bucket(ask(2, base=1), NODE)
    assert second.kind == "delta"
    assert len(second.data) < 100
    out = np.empty_like(first.data)
    decode(second.data.data, first.data, out, runs_of(manifest, manifest.buckets[1]))
    assert out.view(np.float32)[1500 - 1024] == -2
    assert source.bucket(ask(2, base=1), NODE).data is second.data, "made once, for all hosts"
    untouched = [source.bucket(ask(version, 0, base=base), NODE) for version, base in ((1, None), (2, 1))]
    assert [(len(reply.data), reply.kind) for reply in untouched] == [(4096, "full"), (0, "delta")]


def test_what_is_overwritten_or_taken_away_is_gone(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    for version in (1, 2):
        published(source, sender, version)
    assert source.bucket(ask(3), NODE).kind == "unknown"
    assert WeightSource(max_bases=2).bucket(ask(1), NODE).kind == "unknown", "restarted: the learner will say it again"
    sender.release(1)
    published(source, sender, 3)  # into the buffer of version 1
    reply = source.bucket(ask(1), NODE)
    assert reply.kind == "gone"
    assert "released meanwhile" in reply.reason
    source.release(2)
    assert source.bucket(ask(2), NODE).kind == "gone"
    sender.close()
    assert source.bucket(ask(3), NODE).kind == "gone"


def test_copies_are_bounded_and_a_base_without_one_means_whole_buckets(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    for version in range(1, 6):
        published(source, sender, version)
        source.bucket(ask(version), NODE)
        if version > 1:
            source.release(version - 1)
            sender.release(version - 1)
        assert len(source._copies) <= 2
    published(source, sender, 6)
    assert source.bucket(ask(6, base=3), NODE).kind == "full"
    assert source.bucket(ask(6, base=5), NODE).kind == "delta"


def test_a_base_of_another_layout_is_none(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    published(source, sender, 1, size=1600)
    source.bucket(ask(1), NODE)
    published(source, sender, 2)
    assert source.bucket(ask(2, base=1), NODE).kind == "full"


def test_who_is_not_on_the_learners_node_says_where_it_should_be(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    published(source, sender, 1)
    reply = source.bucket(ask(1), "rollout")
    assert reply.kind == "gone"
    assert "place it on the learner's node" in reply.reason


def test_what_no_version_has_is_refused(sender: WeightSender) -> None:
    source = WeightSource(max_bases=2)
    published(source, sender, 1)
    with pytest.raises(ValueError, match="version 1 has 5 buckets, asked for 5"):
        source.bucket(ask(1, 5), NODE)
    with pytest.raises(ValueError, match="version 1 goes upon no weights that travel"):
        source.bucket(ask(1, below=True), NODE)
    with pytest.raises(ValueError, match="max_bases must be >= 2, got 1"):
        WeightSource(max_bases=1)
