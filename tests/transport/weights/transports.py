"""The weight transports that test_transport_contract.py holds to what carrier.py promises.

A further one is a class with these attributes and an entry in TRANSPORTS: its tests are written already.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Protocol

from headrace.transport.weights import Manifest, SenderSettings, WeightReceiver, WeightSender, make_sender, open_weights
from headrace.transport.weights.shm import HEADER_BYTES


class Transport(Protocol):
    name: str
    """as in `weights.transport`"""

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        """A sender with these SenderSettings. `folder` is the test's own, for what lies on disk."""

    def near(self, manifest: Manifest) -> WeightReceiver:
        """The version brought near, unverified."""

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        """Change one bit of what this receiver would load, at `offset` of the flat buffer, behind its back."""

    def lose(self, manifest: Manifest) -> None:
        """Take away the bytes that the sender holds for this version."""


class Shm:
    name = "shm"

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        return make_sender(self.name, SenderSettings(**{"run_id": f"contract-{secrets.token_hex(4)}", **settings}))

    def near(self, manifest: Manifest) -> WeightReceiver:
        return open_weights(manifest)

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        with open(manifest.location, "r+b") as file:
            file.seek(HEADER_BYTES + offset)
            byte = file.read(1)[0]
            file.seek(HEADER_BYTES + offset)
            file.write(bytes([byte ^ 0x10]))

    def lose(self, manifest: Manifest) -> None:
        Path(manifest.location).unlink()


TRANSPORTS: list[Transport] = [Shm()]
