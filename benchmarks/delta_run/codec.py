"""What a delta between two versions takes: bytes, beside the entropy of mask and values, and seconds of one thread."""

from __future__ import annotations

import time

import numpy as np

from headrace.transport.weights import Manifest
from headrace.transport.weights.delta import decode, encode, entropy_bytes, runs_of


def measure(manifest: Manifest, old: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """Bucket by bucket, as the source and a relay do it; what comes back is compared."""
    sent, encode_s, decode_s = 0, 0.0, 0.0
    out = np.zeros_like(old)
    for bucket in manifest.buckets:
        place, runs = slice(bucket.offset, bucket.offset + bucket.nbytes), runs_of(manifest, bucket)
        started = time.perf_counter()
        delta = encode(old[place], new[place], runs)
        encoded = time.perf_counter()
        decode(delta, old[place], out[place], runs)
        decode_s += time.perf_counter() - encoded
        encode_s += encoded - started
        sent += len(delta)
    assert np.array_equal(out, new), "the delta did not give the version back"
    changed, entropy = entropy_bytes(old.view(np.uint16), new.view(np.uint16))
    return {
        "changed": changed / (len(new) // 2),
        "bytes": len(new),
        "sent_bytes": sent,
        "entropy_bytes": entropy,
        "ratio": sent / entropy if entropy else 1.0,
        "entropy_xor_bytes": entropy + _value_entropy(old ^ new) - _value_entropy(old, new),
        "encode_s": encode_s,
        "decode_s": decode_s,
    }


def _value_entropy(bits: np.ndarray, new: np.ndarray | None = None) -> float:
    """Bytes: of the changed values, as xor or as differences."""
    words = bits.view(np.uint16) if new is None else new.view(np.uint16) - bits.view(np.uint16)
    counts = np.bincount(words, minlength=1 << 16)[1:]
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum()) / 8
