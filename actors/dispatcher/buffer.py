"""The buffer of ready groups: in which order they are eaten, which ones are too old, and what makes a batch.

Pure. Bounded by admission, which counts ready sessions as open. Nothing leaves it but in a batch or as a named drop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.actors.session import Group

Consumption = Literal["oldest_ready", "fifo", "newest"]
OverAge = Literal["train", "mask", "drop", "cancel"]


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """`order`: number of the group by issue; `arrival`: by becoming ready; `oldest_version`: of its oldest trained
    token; `step_when_ready`: the learner's optimizer steps when it became ready."""

    group: Group
    order: int
    arrival: int
    oldest_version: int
    step_when_ready: int

    @classmethod
    def of(cls, group: Group, order: int, arrival: int, step_when_ready: int) -> ReadyGroup:
        oldest = min(trajectory.oldest_version for trajectory in group.trajectories)
        return cls(group, order, arrival, oldest, step_when_ready)

    @property
    def num_sessions(self) -> int:
        return len(self.group.trajectories)


CONSUMPTION_ORDERS: dict[str, Callable[[ReadyGroup], tuple[int, int]]] = {
    "oldest_ready": lambda ready: (ready.oldest_version, ready.order),
    "fifo": lambda ready: (0, ready.arrival),
    "newest": lambda ready: (-ready.oldest_version, -ready.order),
}


class ReadyBuffer:
    """`consumption`: `oldest_ready` eats the oldest tokens first, `fifo` in the order of becoming ready, `newest`
    the freshest."""

    def __init__(self, consumption: Consumption = "oldest_ready") -> None:
        if consumption not in CONSUMPTION_ORDERS:
            raise ValueError(f"consumption must be one of {', '.join(CONSUMPTION_ORDERS)}, got {consumption!r}")
        self._key = CONSUMPTION_ORDERS[consumption]
        self._ready: list[ReadyGroup] = []

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def num_sessions(self) -> int:
        return sum(ready.num_sessions for ready in self._ready)

    def push(self, ready: ReadyGroup) -> None:
        self._ready.append(ready)

    def remove_where(self, unwanted: Callable[[ReadyGroup], bool]) -> list[ReadyGroup]:
        """Take out every group for which `unwanted` holds."""
        removed = [ready for ready in self._ready if unwanted(ready)]
        if removed:
            self._ready = [ready for ready in self._ready if not unwanted(ready)]
        return removed

    def take(self, *, batch_sessions: int, group_size: int) -> list[ReadyGroup] | None:
        """One batch of whole groups, or None where it is not full yet; the rest stays.

        Full means that no further whole group fits: exactly `batch_sessions`, or fewer where groups lost members. Never
        more.
        """
        batch: list[ReadyGroup] = []
        total = 0
        for ready in sorted(self._ready, key=self._key):
            if total + group_size > batch_sessions:
                break
            batch.append(ready)
            total += ready.num_sessions
        if total + group_size <= batch_sessions:
            return None
        taken = {id(ready) for ready in batch}
        self._ready = [ready for ready in self._ready if id(ready) not in taken]
        return batch
