"""How a group picks one of its members. Pure, over names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal

Policy = Literal["least_outstanding", "round_robin"]
POLICIES: tuple[Policy, ...] = ("least_outstanding", "round_robin")
SLACK = 1.25


def least_outstanding(members: Iterable[str], outstanding: Callable[[str], int], turn: int) -> str:
    """The member with the fewest asks in flight; ties go round."""
    names = list(members)
    start = turn % len(names)
    return min(names[start:] + names[:start], key=outstanding)


def round_robin(members: Iterable[str], turn: int) -> str:
    names = list(members)
    return names[turn % len(names)]


class Homes:
    """Sticky routing: a key keeps the member that it went to first, the least loaded one then, for the sake of what
    that member has cached. Where its home is gone, or has fallen behind (2 asks more in flight than SLACK times the
    members' mean), it moves to the least loaded. Hashing keys to members would need no memory, but leaves one member of
    two with a queue while the other idles: with 64 sessions on two engines of 32 slots, a twentieth of both. Remembers
    the last `capacity` keys; one that is forgotten begins anew."""

    def __init__(self, capacity: int = 8192) -> None:
        self._capacity = capacity
        self._homes: OrderedDict[str, str] = OrderedDict()

    def pick(self, members: Iterable[str], key: str, outstanding: Callable[[str], int], turn: int) -> str:
        names = list(members)
        home = self._homes.get(key)
        if home not in names or self._behind(home, names, outstanding):
            home = least_outstanding(names, outstanding, turn)
        self._homes[key] = home
        self._homes.move_to_end(key)
        if len(self._homes) > self._capacity:
            self._homes.popitem(last=False)
        return home

    @staticmethod
    def _behind(home: str, names: list[str], outstanding: Callable[[str], int]) -> bool:
        mean = sum(map(outstanding, names)) / len(names)
        return outstanding(home) >= SLACK * mean + 2
