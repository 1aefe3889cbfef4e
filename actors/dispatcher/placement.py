"""Free slots of environments and who sits in them. Pure: the actor tells it who came, who left, and asks where to
put a session.

A slot is taken when a session is placed and free again when the environment said so (SessionsMoved, SessionFailed),
was told to cancel, or died. Only where its word about an ended session stays out for long is the slot freed without it.
"""

from __future__ import annotations

from collections.abc import Callable


class Placement:
    """Slots by environment. A session sits in one slot at most."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._used: dict[str, set[str]] = {}
        self._seat: dict[str, str] = {}
        self._unneeded_since_s: dict[str, float] = {}

    @property
    def num_slots(self) -> int:
        return sum(self._slots.values())

    @property
    def num_free(self) -> int:
        return sum(max(0, slots - len(self._used[name])) for name, slots in self._slots.items())

    @property
    def environments(self) -> tuple[str, ...]:
        return tuple(self._slots)

    def join(self, environment: str, slots: int) -> list[str]:
        """A new environment, or a new incarnation: returns the sessions that sat in the old one."""
        lost = self.leave(environment)
        self._slots[environment] = slots
        self._used[environment] = set()
        return lost

    def close(self, environment: str) -> None:
        """An environment is leaving: it gets no more sessions; those that sit there stay."""
        if environment in self._slots:
            self._slots[environment] = 0

    def leave(self, environment: str) -> list[str]:
        """An environment is gone: returns the sessions that sat in it."""
        self._slots.pop(environment, None)
        lost = sorted(self._used.pop(environment, ()))
        for session_id in lost:
            del self._seat[session_id]
        return lost

    def place(self, session_id: str) -> str | None:
        """Seat a session where most slots are free; None where there is none."""
        best, most = None, 0
        for name, slots in self._slots.items():
            free = slots - len(self._used[name])
            if free > most:
                best, most = name, free
        if best is not None:
            self.release(session_id)
            self._used[best].add(session_id)
            self._seat[session_id] = best
        return best

    def put(self, session_id: str, environment: str) -> None:
        """A session that already sits in an environment, whatever its slots."""
        self.release(session_id)
        self._used[environment].add(session_id)
        self._seat[session_id] = environment

    def seat(self, session_id: str) -> str | None:
        """The environment in which a session sits."""
        return self._seat.get(session_id)

    @property
    def num_seated(self) -> int:
        return len(self._seat)

    def expire(self, needed: Callable[[str], bool], *, now_s: float, grace_s: float) -> list[str]:
        """Free the slots of sessions that for `grace_s` have not needed one (the environment's word about them was
        lost)."""
        unneeded = {session_id for session_id in self._seat if not needed(session_id)}
        self._unneeded_since_s = {s: self._unneeded_since_s.get(s, now_s) for s in unneeded}
        expired = [s for s, since_s in self._unneeded_since_s.items() if now_s - since_s > grace_s]
        for session_id in expired:
            self.release(session_id)
        return expired

    def release(self, session_id: str) -> str | None:
        """Free the slot of a session; returns its environment. Idempotent."""
        environment = self._seat.pop(session_id, None)
        if environment is not None:
            self._used[environment].discard(session_id)
        return environment
