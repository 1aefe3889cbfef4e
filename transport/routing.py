"""How a group picks one of its members. Pure functions over names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Literal

Policy = Literal["least_outstanding", "round_robin"]
POLICIES: tuple[Policy, ...] = ("least_outstanding", "round_robin")


def least_outstanding(members: Iterable[str], outstanding: Callable[[str], int], turn: int) -> str:
    """The member with the fewest asks in flight; ties go round."""
    names = list(members)
    start = turn % len(names)
    return min(names[start:] + names[:start], key=outstanding)


def round_robin(members: Iterable[str], turn: int) -> str:
    names = list(members)
    return names[turn % len(names)]


def sticky(members: Iterable[str], key: str) -> str:
    """Rendezvous hashing: a key keeps its member while that lives; a departure moves only that member's keys."""
    return max(members, key=lambda name: _score(key, name))


def _score(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
