"""Staged weights and the node on which they lie. Who runs there reads them as `shm`.

On another node a relay fetches them by messages from the weights' source, which runs on the learner's node and reads
buckets here, and keeps them in shared memory of its own host (host_copies.py), so that a host receives once. Imports no
torch. Called by the generator's actor, the parameter server's source and the sender in stream.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.transport.weights.checksum import is_whole
from headrace.transport.weights.manifest import Bucket, Manifest, WeightsMismatch
from headrace.transport.weights.segment import HEADER_BYTES

STREAM = "stream"
"""Manifest.transport of what lies on a node; its location is "NODE:PATH"."""


def near(manifest: Manifest, node: str) -> Manifest | None:
    """The version, and what it goes upon, as processes of `node` read it; None where it lies on another node. A
    manifest of another transport is its own."""
    if manifest.transport != STREAM:
        return manifest
    staged_on, _, location = manifest.location.partition(":")
    if staged_on != node:
        return None
    adapter = manifest.adapter
    if adapter is not None and adapter.base is not None:
        adapter = replace(adapter, base=near(adapter.base, node))
    return replace(manifest, transport="shm", location=location, adapter=adapter)


def read_bucket(manifest: Manifest, bucket: Bucket, node: str) -> np.ndarray:
    """A verified copy of a bucket, uint8[nbytes], on the node where it was staged. Raises WeightsMismatch where the
    bytes are gone or no longer those of the manifest: the version was released."""
    local = near(manifest, node)
    if local is None:
        staged_on = manifest.location.partition(":")[0]
        raise WeightsMismatch(
            f"version {manifest.version} was staged on node {staged_on!r}, and the parameter server, which is to give "
            f"it to other hosts, runs on node {node!r}; place it on the learner's node"
        )
    found = np.empty(bucket.nbytes, dtype=np.uint8)
    try:
        with open(local.location, "rb", buffering=0) as file:
            file.seek(HEADER_BYTES + bucket.offset)
            size = file.readinto(found.data)
    except FileNotFoundError:
        size = 0
    if size != bucket.nbytes or not is_whole(found.data, bucket):
        raise WeightsMismatch(f"version {manifest.version}, {local.location}: it was released meanwhile")
    return found
