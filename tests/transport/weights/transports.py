"""The weight transports that test_transport_contract.py holds to what carrier.py promises.

A further one is a class with these attributes and an entry in TRANSPORTS: its tests are written already.
"""

from __future__ import annotations

import json
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from headrace.transport.weights import Manifest, SenderSettings, WeightReceiver, WeightSender, make_sender, open_weights
from headrace.transport.weights.collective.communicator import GroupBroken
from headrace.transport.weights.collective.receiver import CollectiveReceiver, ReceivedWeights
from headrace.transport.weights.collective.sender import CollectiveSender
from headrace.transport.weights.nodes import near
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


def flip_byte(file: BinaryIO, offset: int) -> None:
    file.seek(offset)
    byte = file.read(1)[0]
    file.seek(offset)
    file.write(bytes([byte ^ 0x10]))


class Shm:
    name = "shm"

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        return make_sender(self.name, SenderSettings(**{"run_id": f"contract-{secrets.token_hex(4)}", **settings}))

    def near(self, manifest: Manifest) -> WeightReceiver:
        return open_weights(manifest)

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        with open(manifest.location, "r+b") as file:
            flip_byte(file, HEADER_BYTES + offset)

    def lose(self, manifest: Manifest) -> None:
        Path(manifest.location).unlink()


class Stream:
    """On the learner's own node; tests/actors/relay has the way to others."""

    name = "stream"
    _NODE = "here"

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        ours = {"run_id": f"contract-{secrets.token_hex(4)}", "node": self._NODE, **settings}
        return make_sender(self.name, SenderSettings(**ours))

    def near(self, manifest: Manifest) -> WeightReceiver:
        return open_weights(self._local(manifest))

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        Shm().flip(self._local(manifest), receiver, offset)

    def lose(self, manifest: Manifest) -> None:
        Path(self._local(manifest).location).unlink()

    def _local(self, manifest: Manifest) -> Manifest:
        assert near(manifest, "elsewhere") is None
        local = near(manifest, self._NODE)
        assert local is not None
        return local


class Checkpoint:
    name = "checkpoint"

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        return make_sender(self.name, SenderSettings(**{"run_id": "contract", "folder": folder, **settings}))

    def near(self, manifest: Manifest) -> WeightReceiver:
        return open_weights(manifest)

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        spec = next(spec for spec in manifest.tensors if spec.offset <= offset < spec.offset + spec.nbytes)
        with open(Path(manifest.location) / "model.safetensors", "r+b") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            begin = json.loads(file.read(header_bytes))[spec.name]["data_offsets"][0]
            flip_byte(file, 8 + header_bytes + begin + offset - spec.offset)

    def lose(self, manifest: Manifest) -> None:
        shutil.rmtree(manifest.location)


class Nccl:
    """A broadcast to one other rank, over shared memory. What is near was verified as it came, and is again."""

    name = "nccl"

    def __init__(self) -> None:
        self._senders: list[CollectiveSender] = []

    def sender(self, folder: Path, **settings: Any) -> WeightSender:
        given = SenderSettings(**{"run_id": "contract", "communicator": "memory", **settings})
        self._senders.append(CollectiveSender(given))
        return self._senders[-1]

    def near(self, manifest: Manifest) -> WeightReceiver:
        sender, group = self._senders[-1], secrets.token_hex(4)
        receiver = CollectiveReceiver()
        opened = sender.open_group(group, world_size=2, timeout_s=60, keep=())
        receiver.join(group, *opened, rank=1, world_size=2, timeout_s=60)
        sender.joined(group, 60)
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(sender.send, group, manifest.version, timeout_s=60)
            sending.add_done_callback(lambda done: receiver.abort(group) if done.exception() else None)
            try:
                return receiver.receive(group, manifest, timeout_s=60)
            except GroupBroken:
                sending.result()  # the cause
                raise

    def flip(self, manifest: Manifest, receiver: WeightReceiver, offset: int) -> None:
        assert isinstance(receiver, ReceivedWeights)
        receiver._open()[offset] ^= 0x10

    def lose(self, manifest: Manifest) -> None:
        self._senders[-1].release(manifest.version)


TRANSPORTS: list[Transport] = [Shm(), Stream(), Checkpoint(), Nccl()]
