"""weights=nccl: from this process to one on each other GPU, whole; then one of them is killed half-way through.

With communicator "memory" the same protocol over shared memory, for machines without GPUs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from gpu_checks.member import Member, serve
from gpu_checks.weights import ROUNDS, device_copy_gb_per_s, fingerprints, synchronize, synthetic

JOIN_TIMEOUT_S = 120.0
SLACK_S = 2.0


class Broadcasts:
    """The learner's end, its members, and the group that they are in."""

    def __init__(self, communicator: str, device: str, members: Sequence[Member], bucket_bytes: int) -> None:
        from headrace.transport.weights import SenderSettings
        from headrace.transport.weights.collective.sender import CollectiveSender

        settings = SenderSettings(
            run_id="gpu-check", device=device, communicator=communicator, bucket_bytes=bucket_bytes, num_buffers=3
        )
        self.sender = CollectiveSender(settings)
        self.members = list(members)
        self.group = ""
        self._number = 0
        self._version = 0

    def gather(self) -> None:
        """A new group of all members. Raises GroupBroken, RuntimeError."""
        self._number += 1
        self.group, size = f"gpu-check-{self._number}", 1 + len(self.members)
        opened = self.sender.open_group(self.group, world_size=size, timeout_s=JOIN_TIMEOUT_S, keep=())
        for rank, member in enumerate(self.members, start=1):
            options = {"rank": rank, "world_size": size, "timeout_s": JOIN_TIMEOUT_S}
            member.tell("join", self.group, *opened, options)
        self.sender.joined(self.group, JOIN_TIMEOUT_S)
        for member in self.members:
            member.answer(JOIN_TIMEOUT_S)

    def stage(self, tensors: dict[str, Any]) -> tuple[Any, float]:
        """(manifest, seconds that the learner waits)."""
        synchronize(next(iter(tensors.values())).device)
        self.sender.release(self._version - 1)
        self._version += 1
        started = time.perf_counter()
        staged = self.sender.stage(tensors, version=self._version, step=self._version)
        stage_s = time.perf_counter() - started
        if staged is None:
            raise RuntimeError("no staging buffer was free")
        return staged.seal(), stage_s

    def send(self, manifest: Any, wanted: dict[str, str]) -> tuple[float, float]:
        """(send_s, verify_s), the slowest member's checksums. Raises RuntimeError where a tensor differs."""
        for member in self.members:
            member.tell("receive", self.group, manifest, JOIN_TIMEOUT_S)
        send_s = self.sender.send(self.group, manifest.version, timeout_s=JOIN_TIMEOUT_S)
        verify_s = 0.0
        for member in self.members:
            _, verified_s, found = member.answer()
            if found != wanted:
                raise RuntimeError(f"what arrived on {member.device} is not what was sent")
            verify_s = max(verify_s, verified_s)
        return send_s, verify_s

    def close(self) -> None:
        self.sender.close()
        for member in self.members:
            member.close()


def check_nccl(
    megabytes: int,
    *,
    communicator: str,
    sender: str,
    receivers: Sequence[str],
    bucket_bytes: int = 64 << 20,
    deadline_s: float = 10.0,
) -> dict[str, Any]:
    """communicator: "cupy" or "memory"; sender, receivers: devices; deadline_s: of the broadcast in which one dies.
    Raises RuntimeError, GroupBroken."""
    tensors = synthetic(megabytes, sender)
    wanted = fingerprints(tensors.items())
    broadcasts = Broadcasts(communicator, sender, [Member(serve, device) for device in receivers], bucket_bytes)
    try:
        broadcasts.gather()
        rows = []
        for _ in range(ROUNDS + 1):
            manifest, stage_s = broadcasts.stage(tensors)
            rows.append((stage_s, *broadcasts.send(manifest, wanted)))
        stage_s, send_s, verify_s = (statistics.median(column) for column in zip(*rows[1:], strict=True))
        broken_s, rebuilt_s, how = _lose_one(broadcasts, tensors, wanted, deadline_s)
    finally:
        broadcasts.close()
    return {
        "check": f"nccl ({communicator})",
        "bytes": manifest.nbytes,
        "receivers": len(receivers),
        "stage_s": stage_s,
        "send_s": send_s,
        "verify_s": verify_s,
        "gb_per_s": manifest.nbytes / send_s / 1e9,
        "device_copy_gb_per_s": device_copy_gb_per_s(tensors),
        "killed_receiver_broken_s": broken_s,
        "deadline_s": deadline_s,
        "rebuilt_and_sent_s": rebuilt_s,
        "rebuilt": how,
    }


def _lose_one(
    broadcasts: Broadcasts, tensors: dict[str, Any], wanted: dict[str, str], deadline_s: float
) -> tuple[float, float, str]:
    """Kill the last member in the middle of a version: seconds until the sender was told, and until the version had
    reached a group without it (or, where it was the only one, its successor)."""
    from headrace.transport.weights.collective.communicator import GroupBroken

    manifest, _ = broadcasts.stage(tensors)
    *others, victim = broadcasts.members
    for member in others:
        member.tell("receive", broadcasts.group, manifest, deadline_s)
    victim.tell("die", broadcasts.group, manifest, deadline_s)
    started = time.perf_counter()
    try:
        broadcasts.sender.send(broadcasts.group, manifest.version, timeout_s=deadline_s)
    except GroupBroken:
        broken_s = time.perf_counter() - started
    else:
        raise RuntimeError("a receiver was killed in the middle of a version, and the sender did not notice")
    if broken_s > deadline_s + SLACK_S:
        raise RuntimeError(f"the sender was told after {broken_s:.1f} s, its deadline was {deadline_s:g} s")
    victim.wait_until_dead()
    started = time.perf_counter()
    broadcasts.sender.abort(broadcasts.group)
    for member in others:
        member.tell("abort", broadcasts.group)
        for _ in range(2):  # what it received, which may or may not have broken, and the abort
            try:
                member.answer(deadline_s + SLACK_S)
            except RuntimeError as error:
                if "GroupBroken" not in str(error):
                    raise
    broadcasts.members = others or [Member(serve, victim.device)]
    broadcasts.gather()
    broadcasts.send(manifest, wanted)
    return broken_s, time.perf_counter() - started, "without it" if others else "with its successor, a new process"
