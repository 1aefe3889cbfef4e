"""Which process runs on which node, and on which of its device slots, also after a node was lost. A pure state
machine: each process is on one living node or homeless, and no slot is given twice (but to those that share it).

A lost node's processes become homeless; `settle` places those for which a living node has room: as many free slots as
they need, which for a process without devices is any node. A role that has nobody left comes first. Some roles are
bound to others: whoever reads another's memory goes where that one is. Called by run_nodes.py. What joins in mid-run is
`add`ed; what leaves keeps its slots until it has ended, and is never homeless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.launch.topology import ProcessPlan


@dataclass(frozen=True, slots=True)
class Bonds:
    """together: roles of which all are on one node. readers: roles that are only where one of `owners` or `carriers`
    is. carriers: roles that go nowhere but where homeless readers fit that nobody serves yet."""

    together: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()
    owners: frozenset[str] = frozenset()
    carriers: frozenset[str] = frozenset()

    def serves(self, plans: Collection[ProcessPlan]) -> bool:
        """Whether readers may be where these are."""
        return any(plan.role in self.owners | self.carriers for plan in plans)


NO_BONDS = Bonds()


class Placement:
    def __init__(
        self,
        processes: Sequence[ProcessPlan],
        devices: Mapping[str, Sequence[str]],
        bonds: Bonds = NO_BONDS,
    ) -> None:
        """`processes` in start order, each on its node and slots; `devices`: every node's slots. A node without
        processes is a spare one."""
        self._plans = {plan.name: plan for plan in processes}
        self._devices = {node: tuple(slots) for node, slots in devices.items()}
        self._bonds = bonds
        self._homeless: list[str] = []
        self._lost: set[str] = set()
        self._leaving: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        """Nodes that live."""
        return [node for node in self._devices if node not in self._lost]

    @property
    def homeless(self) -> list[ProcessPlan]:
        """Processes that no node has room for, as they were placed last."""
        return [self._plans[name] for name in self._homeless]

    @property
    def unneeded(self) -> list[ProcessPlan]:
        """Homeless carriers, where no reader is homeless."""
        waiting = any(plan.role in self._bonds.readers for plan in self.homeless)
        return [plan for plan in self.homeless if plan.role in self._bonds.carriers and not waiting]

    @property
    def plans(self) -> list[ProcessPlan]:
        """Every process, also homeless and leaving ones, in the order in which they came."""
        return list(self._plans.values())

    def plan(self, process: str) -> ProcessPlan:
        return self._plans[process]

    def is_leaving(self, process: str) -> bool:
        return process in self._leaving

    def on(self, node: str) -> list[ProcessPlan]:
        """What a node runs, in start order."""
        return [plan for plan in self._plans.values() if plan.node == node and plan.name not in self._homeless]

    def free_slots(self, node: str, *, shared: bool = False) -> list[str]:
        """Those that a further process may have; one that shares may have those of other sharing ones too."""
        taken = {device for plan in self.on(node) if not (shared and plan.shared) for device in plan.devices}
        return [device for device in self._devices[node] if device not in taken]

    def roles_missing(self) -> set[str]:
        """Roles of which every process is homeless."""
        return {plan.role for plan in self.homeless} - {p.role for node in self.nodes for p in self.on(node)}

    # --- transitions ------------------------------------------------------------------------------------------------

    def add(self, plan: ProcessPlan) -> None:
        """A process that joins, on a living node and free slots of it. Raises ValueError."""
        taken = set(plan.devices) - set(
            self.free_slots(plan.node, shared=plan.shared) if plan.node in self.nodes else ()
        )
        if plan.name in self._plans or plan.node not in self.nodes or taken:
            raise ValueError(f"{plan.name} cannot join on {plan.node}: the name, the node or its slots are not free")
        self._plans[plan.name] = plan

    def leave(self, process: str) -> None:
        """It is on its way out."""
        self._leaving.add(process)

    def remove(self, process: str) -> None:
        """It has ended for good, or never had a place. Idempotent."""
        self._plans.pop(process, None)
        self._leaving.discard(process)
        self._homeless = [name for name in self._homeless if name != process]

    def lose(self, node: str) -> list[ProcessPlan]:
        """The node is gone; its processes, now homeless, less those that were leaving."""
        lost = self.on(node)
        self._lost.add(node)
        for name in [plan.name for plan in lost if plan.name in self._leaving]:
            self.remove(name)
        self._homeless = [name for name in self._plans if name in self._homeless or self._plans[name] in lost]
        return lost

    def restore(self, node: str) -> None:
        """The node is back, with nothing on it."""
        self._lost.discard(node)

    def settle(self) -> list[ProcessPlan]:
        """Place what finds room; returns it with its new nodes and slots, in the order in which to start it."""
        placed = []
        while plan := self._next():
            node = self._room_for(plan)
            assert node is not None
            slots = self.free_slots(node, shared=plan.shared)
            slots.sort(key=self.free_slots(node).__contains__)  # who shares goes to the others first
            self._homeless.remove(plan.name)
            self._plans[plan.name] = moved = replace(plan, node=node, devices=tuple(slots[: len(plan.devices)]))
            placed.append(moved)
        return placed

    def _next(self) -> ProcessPlan | None:
        """Roles with nobody left first; of these, or of the others, carriers before the readers that wait for them, and
        both after all else: an owner may make the one needless and serve the other."""
        missing, bonds = self.roles_missing(), self._bonds
        readers = {plan.role for plan in self.homeless if plan.role in bonds.readers}

        def order(plan: ProcessPlan) -> tuple[bool, int]:
            if plan.role in bonds.carriers:
                return not readers & missing, 1
            return plan.role not in missing, 2 * (plan.role in bonds.readers)

        with_room = [plan for plan in self.homeless if self._room_for(plan) is not None]
        return min(with_room, key=order, default=None)

    def _room_for(self, plan: ProcessPlan) -> str | None:
        """Of the living nodes where it may be and has room, the one with the fewest processes; for a carrier the one
        with room for the most readers."""
        bonds = self._bonds
        along = [plan]
        nodes = self.nodes
        if plan.role in bonds.together:  # all that are homeless now, and to where the others are
            fellows = [other for other in self.plans if other.role in bonds.together]
            along = [other for other in fellows if other.name in self._homeless]
            homes = {other.node for other in fellows if other.name not in self._homeless}
            nodes = [node for node in nodes if not homes or node in homes]
        elif plan.role in bonds.readers:
            nodes = [node for node in nodes if bonds.serves(self.on(node))]
        elif plan.role in bonds.carriers:
            nodes = [node for node in nodes if not bonds.serves(self.on(node)) and self._num_readers_for(node)]
        fitting = [node for node in nodes if self._fit(node, along)]
        if plan.role in bonds.carriers:
            return min(fitting, key=lambda node: (-self._num_readers_for(node), len(self.on(node))), default=None)
        return min(fitting, key=lambda node: len(self.on(node)), default=None)

    def _fit(self, node: str, plans: Sequence[ProcessPlan]) -> bool:
        """All of them at once."""
        own = sum(len(plan.devices) for plan in plans if not plan.shared)
        shared = max((len(plan.devices) for plan in plans if plan.shared), default=0)
        return own <= len(self.free_slots(node)) and own + shared <= len(self.free_slots(node, shared=True))

    def _num_readers_for(self, node: str) -> int:
        """How many homeless readers the node has slots for."""
        fitting: list[ProcessPlan] = []
        for plan in self.homeless:
            if plan.role in self._bonds.readers and self._fit(node, [*fitting, plan]):
                fitting.append(plan)
        return len(fitting)
