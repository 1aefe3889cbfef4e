"""The edges of the topology, read from the code: every message that an actor kind handles, and who the message itself
says sends it. A sample of any message, made from its types."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.actors import messages
from headrace.actors.dispatcher.actor import Dispatcher
from headrace.actors.environment import EnvironmentActor
from headrace.actors.generator.actor import Generator
from headrace.actors.generator.scripted_engine import ScriptedEngine
from headrace.actors.grader.actor import Grader
from headrace.actors.learner.actor import Learner
from headrace.actors.learner.ranks.actor import LearnerRank
from headrace.actors.monitor.actor import Monitor
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.relay.actor import Relay
from headrace.launch.run_end import RunEnd
from headrace.transport import Actor, MailboxBound
from headrace.transport.actor import HandlerSpec

RECEIVERS: dict[str, type[Actor]] = {
    "dispatcher": Dispatcher,
    "environment": EnvironmentActor,
    "generator": Generator,
    "grader": Grader,
    "learner": Learner,
    "learner_rank": LearnerRank,
    "monitor": Monitor,
    "parameter_server": ParameterServer,
    "relay": Relay,
    "supervisor": RunEnd,
}
_SENT = re.compile(r"([\w ]+?) → ([\w, ]+?) \((ask|tell)")


@dataclass(frozen=True)
class Edge:
    """`senders`: roles, as the message's docstring has them; "any actor" is every role."""

    senders: tuple[str, ...]
    receiver: str
    message: type
    manner: str
    spec: HandlerSpec

    def __str__(self) -> str:
        return f"{'+'.join(self.senders)}-{self.message.__name__}-{self.receiver}"

    @property
    def bound(self) -> MailboxBound:
        """The receiving kind's own."""
        if self.receiver == "generator":
            return Generator(engine=ScriptedEngine()).mailbox
        return RECEIVERS[self.receiver].mailbox


def spoken(message: type) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """(senders, receivers, ask or tell) that the docstring of a message names."""
    text = " ".join((message.__doc__ or "").split())
    return [
        (_roles(senders), _roles(receivers), manner) for senders, receivers, manner in _SENT.findall(text)
    ]  # fmt: skip


def _roles(text: str) -> tuple[str, ...]:
    return tuple(role.strip() for role in re.split(r" and | or |,", text) if role.strip())


def all_edges() -> list[Edge]:
    """Every (receiver, message) of the topology. What the runtime itself sends (PeerUp, …) is bounded by who comes and
    goes, and is no edge here."""
    edges = []
    for receiver, kind in RECEIVERS.items():
        for message, spec in kind.handlers.items():
            if not message.__module__.startswith("headrace.transport"):
                said = [(s, m) for s, receivers, m in spoken(message) if receiver in receivers]
                senders, manner = said[0] if said else ((), "")
                edges.append(Edge(senders, receiver, message, manner, spec))
    return edges


def own_messages() -> list[type]:
    """What actors/messages.py defines."""
    return [
        value for value in vars(messages).values() if isinstance(value, type) and value.__module__ == messages.__name__
    ]


def sample(kind: Any) -> Any:
    """A small value of that type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        needed = [f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
        return kind(**{name: sample(hints[name]) for name in needed})  # type: ignore[operator]
    if origin is typing.Literal:
        return inner[0]
    if origin in (typing.Union, types.UnionType):
        return None if type(None) in inner else sample(inner[0])
    if origin is tuple:
        return (sample(inner[0]),) if inner[-1] is Ellipsis else tuple(map(sample, inner))
    if origin is dict:
        return {}
    plain: dict[Any, Any] = {str: "a", bytes: b"a", int: 1, float: 1.0, bool: True}
    return np.zeros(4, dtype=np.int32) if kind is np.ndarray else plain[kind]
