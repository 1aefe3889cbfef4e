"""Two network namespaces that see each other through a link of a given rate: two hosts, played by one. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    namespace: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """What goes before a command that runs there."""
        return ["ip", "netns", "exec", self.namespace]


class NoNamespaces(RuntimeError):
    """This process may not make network namespaces or limit a link's rate; says why."""


@contextmanager
def limited_link(rate: str) -> Iterator[tuple[Side, Side]]:
    """`rate` in tc's words ("1gbit"), each way. Removes its own namespaces, whatever happens. Raises NoNamespaces."""
    sides = [Side(f"headrace-{os.getpid()}-{i}", f"10.213.{os.getpid() % 200}.{i + 1}") for i in range(2)]
    devices = [f"hr{os.getpid()}-{i}" for i in range(2)]
    made = []
    try:
        for side in sides:
            _ip("ip", "netns", "add", side.namespace)
            made.append(side)
        ends = [(device, "netns", side.namespace) for device, side in zip(devices, sides, strict=True)]
        _ip("ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for side, device in zip(sides, devices, strict=True):
            _ip("ip", "-n", side.namespace, "addr", "add", f"{side.address}/24", "dev", device)
            for name in ("lo", device):
                _ip("ip", "-n", side.namespace, "link", "set", name, "up")
            limit = ("tbf", "rate", rate, "burst", "1mb", "latency", "50ms")
            _ip(*side.prefix, "tc", "qdisc", "add", "dev", device, "root", *limit)
        yield sides[0], sides[1]
    finally:
        for side in made:
            subprocess.run(["ip", "netns", "del", side.namespace], capture_output=True, check=False)


def _ip(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoNamespaces(f"{error.filename} is not installed") from error
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
