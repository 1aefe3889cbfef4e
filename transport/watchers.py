"""Who of this process's actors is told of the comings and goings of a role.

What `Context.watch` asks for: `PeerUp`, `PeerLeaving` and `PeerDown`, starting with a `PeerUp` for each member that
is there. Called by the runtime; it delivers to cells.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.transport.cell import ActorCell
from headrace.transport.directory import role_of
from headrace.transport.handling import Delivery
from headrace.transport.system import ActorRecord, PeerDown, PeerLeaving, PeerUp


class Watchers:
    def __init__(self) -> None:
        self._of_role: dict[str, list[ActorCell]] = {}

    def add(self, cell: ActorCell, role: str, present: Iterable[ActorRecord]) -> None:
        """`present`: the members of `role` now. Idempotent."""
        watchers = self._of_role.setdefault(role, [])
        if cell in watchers:
            return
        watchers.append(cell)
        for record in present:
            _notify(cell, came(record))

    def remove(self, cell: ActorCell) -> None:
        for watchers in self._of_role.values():
            if cell in watchers:
                watchers.remove(cell)

    def inform(self, news: PeerUp | PeerLeaving | PeerDown) -> None:
        for cell in list(self._of_role.get(role_of(news.name), ())):
            _notify(cell, news)


def came(record: ActorRecord) -> PeerUp:
    return PeerUp(record.name, record.incarnation, record.metadata)


def _notify(cell: ActorCell, news: PeerUp | PeerLeaving | PeerDown) -> None:
    if type(news) in cell.actor.handlers:
        cell.deliver(Delivery(news, None), system=True)
