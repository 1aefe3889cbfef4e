"""From what a user writes (`tcp://eth0`, `tcp://10.0.0.3`, `tcp://localhost`) to the one IPv4 address that is bound and
announced. Whatever would be announced and not reached, or reached by more than was asked for, is refused here."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

SCHEME = "tcp://"
_SIOCGIFADDR = 0x8915
_MAX_INTERFACE_NAME = 15


def resolve(bind: str, *, across_hosts: bool = False) -> ipaddress.IPv4Address:
    """The address of `tcp://<address, interface or host name>`. `across_hosts`: others must reach it, so loopback is
    refused. Raises ValueError."""
    name = bind.removeprefix(SCHEME)
    if ":" in name:
        raise ValueError(f"bind: {bind!r} has a port (or is IPv6); give an IPv4 address or an interface alone")
    interfaces = [interface for _, interface in socket.if_nameindex()]
    address = _literal(name) or (_address_of(name) if name in interfaces else None) or _looked_up(name, interfaces)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(
            f"bind: {name!r} is a wildcard, which binds more than was asked for and cannot be announced; name "
            f"one interface ({', '.join(interfaces)}), or tcp://127.0.0.1 for this host alone"
        )
    if across_hosts and address.is_loopback:
        raise ValueError(
            f"bind: {name!r} is {address}, where other hosts do not reach this one; name the interface that "
            f"joins the hosts ({', '.join(interfaces)}) or its address"
        )
    _check_is_ours(name, address, interfaces)
    return address


def _check_is_ours(name: str, address: ipaddress.IPv4Address, interfaces: list[str]) -> None:
    """One address of one interface: binding refuses what is another host's, but takes a broadcast address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
            probe.connect((str(address), 9))  # sends nothing; only a broadcast address needs a permission for it
        except OSError as error:
            raise ValueError(
                f"bind: {name!r} ({address}) is no address of this host: {error.strerror}; name an interface "
                f"({', '.join(interfaces)}) or its address"
            ) from error


def _literal(name: str) -> ipaddress.IPv4Address | None:
    try:
        return ipaddress.IPv4Address(name)
    except ValueError:
        return None


def _address_of(interface: str) -> ipaddress.IPv4Address:
    request = struct.pack("256s", interface.encode()[:_MAX_INTERFACE_NAME])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise ValueError(f"bind: the interface {interface!r} has no IPv4 address: {error}") from error
    return ipaddress.IPv4Address(answer[20:24])


def _looked_up(name: str, interfaces: list[str]) -> ipaddress.IPv4Address:
    """A host name. Debian's /etc/hosts gives a machine's own name 127.0.1.1: announced, every other host would connect
    to itself."""
    try:
        address = ipaddress.IPv4Address(socket.gethostbyname(name))
    except (OSError, ValueError, UnicodeError) as error:
        raise ValueError(
            f"bind: {name!r} is no IPv4 address, no interface of this host ({', '.join(interfaces)}) and no "
            f"host name: {error}"
        ) from error
    if address.is_loopback and name != "localhost":
        raise ValueError(
            f"bind: the host name {name!r} resolves to {address} here, where other hosts do not reach this "
            f"one; name an interface ({', '.join(interfaces)}) or its address, or tcp://127.0.0.1 for this host alone"
        )
    return address
