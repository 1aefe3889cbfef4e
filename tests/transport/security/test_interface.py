"""What is bound and announced: one interface, reached by those who need it and nobody else."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from headrace.transport import CurveKeys, ZmqNetwork
from headrace.transport.security.interface import resolve

LOOPBACK = ipaddress.IPv4Address("127.0.0.1")


def test_addresses_interfaces_and_localhost() -> None:
    assert resolve("tcp://127.0.0.1") == LOOPBACK
    assert resolve("tcp://lo") == LOOPBACK
    assert resolve("tcp://localhost") == LOOPBACK


def test_an_address_that_others_reach(own_address: str) -> None:
    assert resolve(f"tcp://{own_address}", across_hosts=True) == ipaddress.IPv4Address(own_address)


@pytest.mark.parametrize("address", ["198.51.100.7", "255.255.255.255", "127.255.255.255"])
def test_what_is_no_address_of_this_host_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=rf"{address}.* is no address of this host: .*name an interface \(.*lo"):
        resolve(f"tcp://{address}")


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0", "tcp://*", "tcp://224.0.0.1", "tcp://127.0.0.1:5555", "tcp://[::1]"])
def test_wildcards_and_ports_are_refused(bind: str) -> None:
    with pytest.raises(ValueError, match=r"bind.*(wildcard|port|no IPv4 address)"):
        resolve(bind)


def test_a_host_name_that_debian_maps_to_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """cases H112: skypilot-org/skypilot#10333. Other hosts would connect to themselves."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    with pytest.raises(ValueError, match=r"'node-7' resolves to 127.0.1.1.*name an interface \(.*lo"):
        resolve("tcp://node-7")


def test_loopback_is_refused_where_other_hosts_must_reach_it() -> None:
    for bind in ("tcp://127.0.0.1", "tcp://lo", "tcp://localhost"):
        with pytest.raises(ValueError, match="other hosts do not reach"):
            resolve(bind, across_hosts=True)


def test_what_other_hosts_reach_needs_keys(own_address: str) -> None:
    with pytest.raises(ValueError, match="reached by other hosts; give keys"):
        ZmqNetwork(bind=f"tcp://{own_address}")
    ZmqNetwork(bind=f"tcp://{own_address}", keys=CurveKeys.make())
