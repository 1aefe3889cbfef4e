"""How many files and sockets a process of a run may have open."""

from __future__ import annotations

import resource

_WANTED = 65_536


def raise_descriptor_limit() -> None:
    """As far as this user may: each peer takes up to 8, and 1,024 (the usual soft limit, kept low for programs that use
    select) are soon taken by what merely connects. Processes that are started inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
