"""How messages and weights travel. Knows nothing of reinforcement learning.

The public face of the runtime; docs/runtime.md holds the delivery contract. Weights are in
`headrace.transport.weights`.
"""

from headrace.transport.activity import Activity
from headrace.transport.actor import Actor, handles
from headrace.transport.clock import Clock, LoopClock, MonotonicClock
from headrace.transport.context import Context
from headrace.transport.errors import (
    ActorFailed,
    BadMessage,
    CorruptFrame,
    DeadlineExceeded,
    HandshakeFailed,
    InvalidField,
    NotHandled,
    Oversize,
    PeerLost,
    Refused,
    RemoteError,
    RuntimeStopped,
    TransportError,
    UnknownActor,
    UnknownMessage,
    WrongVersion,
)
from headrace.transport.group import Group
from headrace.transport.insist import insist
from headrace.transport.loopback import LoopbackNetwork
from headrace.transport.mailbox import MailboxBound
from headrace.transport.message import message
from headrace.transport.network import Address, Network
from headrace.transport.runtime import Runtime
from headrace.transport.security.keys import CurveKeys
from headrace.transport.stream_network import StreamNetwork
from headrace.transport.system import (
    ActivityQuery,
    ActivitySnapshot,
    PeerDown,
    PeerLeaving,
    PeerUp,
    PeerWait,
    TaskReport,
    WaitQuery,
    WaitReport,
)
from headrace.transport.virtual import Deadlock, VirtualTimeLoop, run_virtual
from headrace.transport.zmq_network import ZmqNetwork

__all__ = [
    "Activity",
    "ActivityQuery",
    "ActivitySnapshot",
    "Actor",
    "ActorFailed",
    "Address",
    "BadMessage",
    "Clock",
    "Context",
    "CorruptFrame",
    "CurveKeys",
    "DeadlineExceeded",
    "Deadlock",
    "Group",
    "HandshakeFailed",
    "InvalidField",
    "LoopClock",
    "LoopbackNetwork",
    "MailboxBound",
    "MonotonicClock",
    "Network",
    "NotHandled",
    "Oversize",
    "PeerDown",
    "PeerLeaving",
    "PeerLost",
    "PeerUp",
    "PeerWait",
    "Refused",
    "RemoteError",
    "Runtime",
    "RuntimeStopped",
    "StreamNetwork",
    "TaskReport",
    "TransportError",
    "UnknownActor",
    "UnknownMessage",
    "VirtualTimeLoop",
    "WaitQuery",
    "WaitReport",
    "WrongVersion",
    "ZmqNetwork",
    "handles",
    "insist",
    "message",
    "run_virtual",
]
