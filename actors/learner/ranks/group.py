"""The ranks of one learner over torch.distributed: gloo on CPUs, NCCL between GPUs (and gloo for what is said).

A rank that dies closes its connections: every other rank's next meeting, or the one under way, raises RuntimeError.
A rank that hangs is the supervisor's to kill (launch.silence_s); no meeting has a deadline, as a learner may wait for
its next batch for hours.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
_FOR_EVER = timedelta(days=365)
_END = "end"
_INTERFACE = "GLOO_SOCKET_IFNAME"


class RankGroup:
    """See Ranks. One a process. `files`: a group for meetings of the threads that write files."""

    def __init__(self, store: Any, *, rank: int, size: int, device: torch.device, host: str) -> None:
        """Blocks until every rank is here. Raises RuntimeError (torch's DistError) at the store's deadline."""
        if host == LOOPBACK:
            os.environ.setdefault(_INTERFACE, "lo")
        backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_FOR_EVER)
        self.rank, self.size = rank, size
        self._said = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self.files = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self._mesh: DeviceMesh = init_device_mesh(device.type, (size,))

    def announce(self, whose: str, method: str, *args: Any) -> None:
        """See Ranks."""
        if self.rank == 0:
            dist.broadcast_object_list([whose, method, args], src=0, group=self._said)

    def heard(self) -> tuple[str, str, tuple[Any, ...]] | None:
        """At another rank: what rank 0 announces next; None at the end."""
        heard: list[Any] = [None, None, None]
        dist.broadcast_object_list(heard, src=0, group=self._said)
        return None if heard[0] == _END else (heard[0], heard[1], heard[2])

    def gather(self, value: T) -> list[T]:
        """See Ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._said)
        return cast("list[T]", found)

    def any(self, flag: bool) -> bool:
        """See Ranks."""
        told = torch.tensor([flag], dtype=torch.uint8)
        dist.all_reduce(told, op=dist.ReduceOp.MAX, group=self._said)
        return bool(told.item())

    def shard(self, model: Any, parts: Sequence[Any]) -> None:
        """See Ranks. Parts free what they brought together when they are done, in a pass that takes no gradient too:
        the next pass must not find what was before the optimizer's step."""
        for module in (*parts, model):
            fully_shard(module, mesh=self._mesh, reshard_after_forward=True)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # weights of the loss are those of the whole batch
                module.set_gradient_divide_factor(1.0)

    def end(self) -> None:
        """At rank 0: the others have nothing to do any more."""
        dist.broadcast_object_list([_END, None, None], src=0, group=self._said)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def open_store(host: str, size: int, *, timeout_s: float) -> tuple[Any, int]:
    """Rank 0's meeting place, and its port, on `host` alone."""
    listening = socket.create_server((host, 0))
    port = listening.getsockname()[1]
    store = TCPStore(
        host,
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    return store, port


def join_store(host: str, port: int, size: int, *, timeout_s: float) -> Any:
    """Another rank's way there."""
    return TCPStore(host, port, size, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
