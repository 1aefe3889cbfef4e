"""Seeds and choices that depend on names alone: equal in every process, unrelated for unequal names."""

from __future__ import annotations

import hashlib

_SEED_BITS = 31


def derived_seed(*names: object) -> int:
    """A seed in [0, 2^31). Neighbouring names give unrelated seeds; adding an index to it stays clear of others in
    practice."""
    return _digest(*names) >> (64 - _SEED_BITS)


def derived_fraction(*names: object) -> float:
    """A uniform number in [0, 1)."""
    return (_digest(*names) >> 11) / 2**53


def _digest(*names: object) -> int:
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
