"""A seed for each generation of a run: all distinct, the same ones again on a rerun. No state."""

from __future__ import annotations

import hashlib

from headrace.actors.session import SessionSpec


def generation_seed(base: int | None, spec: SessionSpec, turn: int) -> int | None:
    """In [0, 2**63): from the session's own seed, or where it has none the base seed and the group, from the member,
    the attempt and the turn, and nothing of the process that happens to run the session: the same wherever it runs, and
    no two members of a group alike. A task that is issued again, as another group, has the seeds that it had. None
    where there is neither seed."""
    own = spec.sampling.seed
    if own is None and base is None:
        return None
    key = f"{f'{base} {spec.group_id}' if own is None else own}\0{spec.member}\0{spec.attempt}\0{turn}"
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1
