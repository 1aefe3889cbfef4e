"""What a message is: a frozen dataclass registered under a name and a schema version.

    @message("greeter.hello")
    @dataclass(frozen=True, slots=True)
    class Hello:
        name: str

The name and version travel, never the class's path. Fields are compiled on first use (schema.py), so annotations may
be strings and may name classes defined later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from headrace.transport.errors import UnknownMessage, WrongVersion

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class MessageType:
    name: str
    version: int
    cls: type


_BY_NAME: dict[str, MessageType] = {}
_BY_CLASS: dict[type, MessageType] = {}


def message(name: str, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Register a frozen dataclass under `name`. Raises TypeError for another kind of class or a name that is taken."""

    def register(cls: type[T]) -> type[T]:
        if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            raise TypeError(
                f"message {name!r}: {cls.__qualname__} must be a frozen dataclass; put "
                f"@dataclass(frozen=True, slots=True) below @message"
            )
        taken = _BY_NAME.get(name)
        if taken is not None and (taken.cls.__module__, taken.cls.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(
                f"message name {name!r} is taken by {taken.cls.__module__}.{taken.cls.__qualname__}; choose another "
                f"for {cls.__module__}.{cls.__qualname__}"
            )
        if version < 1:
            raise TypeError(f"message {name!r}: version must be >= 1, got {version}")
        registered = MessageType(name, version, cls)
        _BY_NAME[name] = registered
        _BY_CLASS[cls] = registered
        return cls

    return register


def type_of(cls: type) -> MessageType:
    """The registration of a class. Raises UnknownMessage for a class that is no message."""
    try:
        return _BY_CLASS[cls]
    except KeyError:
        raise UnknownMessage(
            f"{cls.__module__}.{cls.__qualname__} is not a message; decorate it with @message(name) or send one that is"
        ) from None


def type_named(name: str, version: int) -> MessageType:
    """The registration of a name. Raises UnknownMessage, or WrongVersion where the peer's schema is another."""
    registered = _BY_NAME.get(name)
    if registered is None:
        raise UnknownMessage(f"no message {name!r} is registered in this process; import the module that defines it")
    if registered.version != version:
        raise WrongVersion(
            f"message {name!r} came with schema version {version}, this process has version {registered.version}; run "
            f"one release on all nodes"
        )
    return registered
