"""Where relays of other hosts get the weights: bucket by bucket, as they ask, whole or as a delta upon what they hold.

It reads the learner's shared memory, so it runs on the learner's node. What it hands out it has checked; a version that
was overwritten meanwhile is "gone". For deltas it keeps copies of the versions that relays will name as their base, the
newest few. It knows no relay: nothing to clean up when one dies, and one that comes again asks for what it lacks.
Called by the parameter server's actor; its work runs in threads.
"""

from __future__ import annotations

import threading

import numpy as np

from headrace.actors.messages import FetchBucket, WeightsBucket
from headrace.transport.weights import Bucket, Manifest, WeightsMismatch
from headrace.transport.weights.delta import encode, runs_of
from headrace.transport.weights.nodes import STREAM, read_bucket

_NOTHING = np.zeros(0, dtype=np.uint8)


class WeightSource:
    """max_bases: versions of which a copy is kept for deltas, the one that is being fetched included; relays that lag
    further behind get whole buckets."""

    def __init__(self, *, max_bases: int) -> None:
        if max_bases < 2:
            raise ValueError(
                f"parameter_server.max_bases must be >= 2, got {max_bases}: a delta needs the version that a relay "
                "holds and the one that it fetches"
            )
        self._max_bases = max_bases
        self._manifests: dict[int, Manifest] = {}
        self._newest = 0
        self._copies: dict[int, dict[int, np.ndarray]] = {}
        self._deltas: dict[tuple[int, int, int], np.ndarray] = {}
        self._one = threading.Lock()

    def publish(self, manifest: Manifest) -> None:
        """From now on it may be fetched."""
        if manifest.transport == STREAM:
            with self._one:
                self._manifests[manifest.version] = manifest
                self._newest = max(self._newest, manifest.version)
                self._deltas = {key: delta for key, delta in self._deltas.items() if key[0] in self._manifests}

    def release(self, version: int) -> None:
        """Nobody fetches it any more; a copy that is kept stays for deltas upon it."""
        with self._one:
            self._manifests.pop(version, None)
            self._deltas = {key: delta for key, delta in self._deltas.items() if key[0] != version}

    def bucket(self, ask: FetchBucket, node: str) -> WeightsBucket:
        """Blocks for a few milliseconds; thread-safe. `node`: where this process runs. Raises ValueError for a bucket
        that the version does not have."""
        manifest = self._manifests.get(ask.version)
        if manifest is None:
            gone = ask.version <= self._newest
            return WeightsBucket("gone" if gone else "unknown", _NOTHING, f"the newest version is {self._newest}")
        if ask.below:
            base = None if manifest.adapter is None else manifest.adapter.base
            if base is None:
                raise ValueError(f"version {ask.version} goes upon no weights that travel")
            manifest = base
        if not 0 <= ask.index < len(manifest.buckets):
            raise ValueError(f"version {ask.version} has {len(manifest.buckets)} buckets, asked for {ask.index}")
        bucket = manifest.buckets[ask.index]
        try:
            new = self._bytes(manifest, bucket, ask, node)
        except WeightsMismatch as error:
            return WeightsBucket("gone", _NOTHING, str(error))
        if ask.base is not None and not ask.below:
            delta = self._delta(manifest, bucket, new, ask.base, ask.index)
            if delta is not None:
                return WeightsBucket("delta", delta)
        return WeightsBucket("full", new)

    def _bytes(self, manifest: Manifest, bucket: Bucket, ask: FetchBucket, node: str) -> np.ndarray:
        keep = ask.keep and not ask.below
        with self._one:
            kept = self._copies.get(ask.version, {}).get(ask.index) if keep else None
        if kept is not None:
            return kept
        found = read_bucket(manifest, bucket, node)
        if keep:
            with self._one:
                self._copies.setdefault(ask.version, {})[ask.index] = found
                while len(self._copies) > self._max_bases:
                    del self._copies[min(self._copies)]
        return found

    def _delta(self, manifest: Manifest, bucket: Bucket, new: np.ndarray, base: int, index: int) -> np.ndarray | None:
        """None where the base is gone or of another layout, or where it would save nothing."""
        key = (manifest.version, base, index)
        with self._one:
            old, made = self._copies.get(base, {}).get(index), self._deltas.get(key)
        if old is None or len(old) != len(new):
            return None
        if made is None:
            made = np.frombuffer(encode(old, new, runs_of(manifest, bucket)), dtype=np.uint8)
            with self._one:
                if manifest.version in self._manifests:
                    self._deltas[key] = made
        return made if len(made) < len(new) else None
