"""Sockets that are files: where one may lie, and whether what a peer names can be one."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.transport.errors import TransportError

MAX_PATH_BYTES = 107
"""The kernel's limit."""


def checked_length(path: Path, setting: str) -> Path:
    """The path. Raises TransportError where it is too long; `setting` names what makes it shorter."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise TransportError(f"the socket path {path} is longer than {MAX_PATH_BYTES} bytes; give a shorter {setting}")
    return path


def may_be_peer(endpoint: str, scheme: str, folder: Path) -> bool:
    """Whether it is the socket of a peer below `folder`. What comes in a HELLO is connected to: no other socket of this
    host shall be."""
    path = Path(endpoint.removeprefix(scheme))
    inside = folder in path.parents and ".." not in path.parts
    return endpoint.startswith(scheme) and inside and len(os.fsencode(path)) <= MAX_PATH_BYTES
