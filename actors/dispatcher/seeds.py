"""Seeds of sessions: a pure function of who the session is, so that a rerun samples the same and no two sessions
share one."""

from __future__ import annotations

from hashlib import blake2b


def session_seed(base: int, purpose: str, *identity: int) -> int:
    """63 bits out of the run's seed, the purpose ("train", "eval") and e.g. (task index, member). Independent of the
    actor that serves the session and of its attempt."""
    text = ":".join([str(base), purpose, *map(str, identity)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
