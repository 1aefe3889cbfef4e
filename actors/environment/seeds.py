"""A seed for each generation of a run: all distinct, the same ones again on a rerun. No state."""

from __future__ import annotations

import hashlib

from headrace.actors.session import SessionSpec


def generation_seed(base: int, spec: SessionSpec, turn: int) -> int:
    """In [0, 2**63): from the base seed, the group, the member, the attempt and the turn, and nothing of the process
    that happens to run the session: the same wherever it runs, and no two members of a group alike."""
    key = f"{base}\0{spec.group_id}\0{spec.member}\0{spec.attempt}\0{turn}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
