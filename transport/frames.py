"""The wire format between two runtimes: a batch frame with a header and envelopes. docs/runtime.md describes it for
other languages.

    [MAGIC, sender incarnation, receiver incarnation, epoch, sequence, envelope, envelope, …]      one msgpack array
    array frames of the one envelope that has any (bulk lane only)

Pure functions. Nothing here trusts what came: whatever has another form raises CorruptFrame.
"""

from __future__ import annotations

import reprlib
from enum import IntEnum
from typing import Any

from headrace.transport.codec import pack, unpack
from headrace.transport.errors import CorruptFrame
from headrace.transport.network import Frame

MAGIC = "headrace/1"
_HEADER_FIELDS = 5


class Kind(IntEnum):
    """The first element of an envelope; what follows it stands behind."""

    HELLO = 0  # address                                 the first of a link: where replies go
    ASK = 1  # call id, actor, is credited, bytes, payload
    TELL = 2  # actor, is credited, bytes, payload
    REPLY = 3  # call id, bytes, payload
    ERROR = 4  # call id, [class, text, details …]
    ITEM = 5  # call id, bytes, payload                  one of a stream's replies
    END = 6  # call id                                   the stream's end
    CANCEL = 7  # call id                                nobody waits for it any more
    GRANT = 8  # actor, epoch, messages, bytes           consumed so far, in all
    ITEMS = 9  # call id, number                         room for so many more items
    GAP = 10  # lane                                     messages of yours were lost; start a new epoch
    OFFER = 11  # number, process, descriptor, bytes     memory in which arrays will lie (bulk lane)
    MAPPED = 12  # number, is mapped                     the answer
    SHARED = 13  # place, envelope                       an envelope whose arrays lie there (bulk lane)


FORMS: dict[int, tuple[type, ...]] = {
    Kind.HELLO: (str,),
    Kind.ASK: (int, str, bool, int, object),
    Kind.TELL: (str, bool, int, object),
    Kind.REPLY: (int, int, object),
    Kind.ERROR: (int, list),
    Kind.ITEM: (int, int, object),
    Kind.END: (int,),
    Kind.CANCEL: (int,),
    Kind.GRANT: (str, int, int, int),
    Kind.ITEMS: (int, int),
    Kind.GAP: (int,),
    Kind.OFFER: (int, int, int, int),
    Kind.MAPPED: (int, bool),
    Kind.SHARED: (list, list),
}

PAYLOADS = frozenset((Kind.ASK, Kind.TELL, Kind.REPLY, Kind.ITEM))


_CHECKS = {kind: (len(form) + 1, tuple(one for one in form if one is not object)) for kind, form in FORMS.items()}
"""How long an envelope is, kind included, and the types of what follows the kind; only the last value may be any."""


def envelope(values: tuple[Any, ...], nbytes: int, payload: bytes) -> bytes:
    """[kind, …, bytes, payload] from a payload that is packed already: its size is part of the envelope."""
    head = pack((*values, nbytes))
    return b"".join((bytes((head[0] + 1,)), head[1:], payload))


def shared(place: list[int], envelope: bytes) -> bytes:
    """A packed envelope whose arrays lie in shared memory."""
    return b"".join((b"\x93", bytes((Kind.SHARED,)), pack(place), envelope))


def header(source: str, target: str, epoch: int) -> bytes:
    """The part of a batch that stays the same for a link and epoch."""
    return pack(MAGIC) + pack(source) + pack(target) + pack(epoch)


def join(prefix: bytes, sequence: int, envelopes: list[bytes]) -> bytes:
    """One batch frame from packed envelopes."""
    num = _HEADER_FIELDS + len(envelopes)
    length = bytes((0x90 | num,)) if num < 16 else b"\xdc" + num.to_bytes(2, "big")
    return b"".join((length, prefix, pack(sequence), *envelopes))


def split(frame: Frame) -> tuple[str, str, int, int, list[Any]]:
    """Sender, receiver, epoch, sequence, envelopes (which `check` checks one by one). Raises CorruptFrame."""
    values = unpack(frame)
    if type(values) is not list or len(values) < _HEADER_FIELDS or values[0] != MAGIC:
        raise CorruptFrame("not a batch of this protocol")
    _, source, target, epoch, sequence, *envelopes = values
    if type(source) is not str or type(target) is not str or type(epoch) is not int or type(sequence) is not int:
        raise CorruptFrame("a batch's header is [magic, text, text, int, int]")
    return source, target, epoch, sequence, envelopes


def check(envelope: Any) -> int:
    """The kind. Raises CorruptFrame where the envelope has not the form of its kind."""
    try:
        kind = envelope[0]
        length, form = _CHECKS[kind]
    except (TypeError, LookupError):
        raise CorruptFrame(f"an envelope is a list that begins with its kind, got {_shown(envelope)}") from None
    if type(envelope) is not list or len(envelope) != length or type(kind) is not int:
        raise CorruptFrame(f"an envelope of kind {_shown(kind)} has {length - 1} values, got {_shown(envelope)}")
    if tuple(map(type, envelope[1 : len(form) + 1])) != form:
        types = ", ".join(one.__name__ for one in form)
        raise CorruptFrame(f"an envelope of kind {kind} holds {types}, got {_shown(envelope)}")
    return kind


def _shown(value: Any) -> str:
    """repr recurses as deep as the value is, and what came may be deeper than Python's stack."""
    return f"{reprlib.repr(value):.80}"
