"""The optimizer's tensors, written by all ranks at once, each its part (torch.distributed.checkpoint), and read back by
as many ranks as there are then, or by one that is alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import load, save  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor


def copied_parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A copy of each, in this host's memory, that may be written while the tensors change."""
    mesh: DeviceMesh | None = None
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            mesh = mesh or init_device_mesh("cpu", tensor.device_mesh.mesh.shape)
            local = tensor.to_local().detach().to("cpu", copy=True)
            copies[name] = DTensor.from_local(
                local, mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
            )
        else:
            copies[name] = tensor.detach().to("cpu", copy=True)
    return copies


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], files: Any) -> None:
    """At every rank, in a thread that writes: returns when all of them have written. `files`: see RankGroup. Raises
    CheckpointException at every rank where one could not."""
    save(dict(tensors), checkpoint_id=folder, process_group=files)


def read_shards(folder: Path, tensors: Mapping[str, torch.Tensor], *, alone: bool) -> None:
    """Fill them. Every rank, or one that is alone."""
    load(dict(tensors), checkpoint_id=folder, no_dist=alone)


def like(whole: torch.Tensor, shape_of: torch.Tensor) -> torch.Tensor:
    """`whole`, the same at every rank, sharded as `shape_of` is, where it is."""
    if isinstance(shape_of, DTensor) and whole.shape == shape_of.shape:
        return distribute_tensor(whole, shape_of.device_mesh, shape_of.placements, src_data_rank=None)
    return whole
