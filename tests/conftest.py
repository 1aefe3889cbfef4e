"""Fixtures of the whole suite."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from headrace.transport.security.interface import resolve


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the working tree."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def own_address() -> str:
    """An IPv4 address of this host that others can reach."""
    for _, interface in socket.if_nameindex():
        with contextlib.suppress(ValueError):
            return str(resolve(f"tcp://{interface}", across_hosts=True))
    pytest.skip("this host has loopback addresses only")
