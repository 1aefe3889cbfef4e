"""Every error that the runtime raises at its users. A wait on a peer ends in a reply or in one of these, never in
silence.

    TransportError
    ├── DeadlineExceeded            the reply did not come in time (also a TimeoutError)
    │   └── UnknownActor            no actor of that name appeared in time; says which names are known
    ├── PeerLost                    the peer died, left, or was replaced (`PeerDown` tells watchers the same)
    │   └── HandshakeFailed         one of the two processes is none of the run: other keys, no CURVE
    ├── Refused                     the peer would not take it: its mailbox is full, or it is stopping
    ├── RemoteError                 the peer's handler raised; carries the remote traceback
    ├── BadMessage                  what was sent cannot be a message
    │   ├── UnknownMessage          no message is registered under that name
    │   ├── WrongVersion            registered, with another schema version
    │   ├── InvalidField            a missing, extra or ill-typed field
    │   ├── NotHandled              the actor has no handler for it
    │   ├── Oversize                larger than the limit
    │   └── CorruptFrame            bytes that are no frame of this protocol
    ├── ActorFailed                 on_start or a background task of an actor of this process raised
    └── RuntimeStopped              this process's own runtime has stopped

Errors cross the wire as their class name and strings; `to_wire` and `from_wire` do it. Nothing is pickled.
"""

from __future__ import annotations


class TransportError(Exception):
    """The root. `details` are strings from which an equal error can be built in another process."""

    def __init__(self, text: str, *details: str) -> None:
        super().__init__(text)
        self.text = text
        self.details = details

    def __str__(self) -> str:
        return self.text


class DeadlineExceeded(TransportError, TimeoutError):
    """The reply did not come within timeout_s. Whether the peer did the work is unknown."""


class UnknownActor(DeadlineExceeded):
    """No actor of that name (or no member of that role) appeared before the deadline."""


class PeerLost(TransportError):
    """The peer died, left or was replaced. `name`, `incarnation` and `reason` say who and why."""

    def __init__(self, text: str, name: str = "", incarnation: str = "", reason: str = "") -> None:
        super().__init__(text, name, incarnation, reason)
        self.name, self.incarnation, self.reason = name, incarnation, reason

    @classmethod
    def of(cls, name: str, incarnation: str, reason: str) -> PeerLost:
        return cls(f"{name} (incarnation {incarnation}) is gone: {reason}", name, incarnation, reason)


class HandshakeFailed(PeerLost):
    """There is a process at the peer's address, but it is none of this run, or this process is none of its run; or the
    system gives this process no socket for it."""

    @classmethod
    def of(cls, name: str, incarnation: str, reason: str) -> HandshakeFailed:
        text = f"{name} (incarnation {incarnation}) cannot be reached, no connection to its process: {reason}"
        return cls(text, name, incarnation, reason)


class Refused(TransportError):
    """The peer would not take the message; it was not handled."""


class RemoteError(TransportError):
    """The peer's handler raised. `error_type` is the class name there, `remote_traceback` its traceback."""

    def __init__(self, text: str, error_type: str = "", remote_traceback: str = "") -> None:
        super().__init__(text, error_type, remote_traceback)
        self.error_type, self.remote_traceback = error_type, remote_traceback

    def __str__(self) -> str:
        return f"{self.text}\n--- remote traceback ---\n{self.remote_traceback}" if self.remote_traceback else self.text


class BadMessage(TransportError):
    """What was sent cannot be a message."""


class UnknownMessage(BadMessage):
    """No message type is registered under that name in this process."""


class WrongVersion(BadMessage):
    """The name is registered with another schema version."""


class InvalidField(BadMessage):
    """A field is missing, extra or ill-typed; the text names it."""


class NotHandled(BadMessage):
    """The actor exists but has no handler for this message type."""


class Oversize(BadMessage):
    """The message is larger than the limit."""


class CorruptFrame(BadMessage):
    """Bytes that are no frame of this protocol."""


class ActorFailed(TransportError):
    """An actor of this process failed: on_start or a background task raised. The traceback is in the text."""


class RuntimeStopped(TransportError):
    """The runtime of this process has stopped."""


_BY_NAME: dict[str, type[TransportError]] = {
    cls.__name__: cls
    for cls in (
        TransportError, DeadlineExceeded, UnknownActor, PeerLost, HandshakeFailed, Refused, RemoteError, BadMessage,
        UnknownMessage, WrongVersion, InvalidField, NotHandled, Oversize, CorruptFrame, ActorFailed, RuntimeStopped,
    )
}  # fmt: skip


_MAX_TEXT = 24_000
"""characters of each string of an error: a batch of the control lane always holds one"""


def to_wire(error: TransportError) -> list[str]:
    """[class name, text, details …], each string cut to its first half and its last where it is too long."""
    return [type(error).__name__, *(cut(text, _MAX_TEXT) for text in (error.text, *error.details[:3]))]


def describe(error: BaseException) -> str:
    """Its class and text, however it is made."""
    try:
        text = str(error)
    except Exception as failure:
        text = f"(its text cannot be made: {type(failure).__name__})"
    return cut(f"{type(error).__name__}: {text}", 2_000)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of it, its beginning and its end; without lone surrogates, which do not travel."""
    if not text.isascii():
        text = text.encode(errors="backslashreplace").decode()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def from_wire(parts: object) -> TransportError:
    """The error that `to_wire` described; a TransportError that says so where the description is malformed."""
    if not isinstance(parts, list) or len(parts) < 2 or not all(isinstance(part, str) for part in parts):
        return TransportError(f"the peer sent an error that cannot be read: {parts!r:.200}")
    cls = _BY_NAME.get(parts[0], TransportError)
    details = parts[2:5] if cls in (PeerLost, HandshakeFailed, RemoteError) else []
    return cls(parts[1], *details)
