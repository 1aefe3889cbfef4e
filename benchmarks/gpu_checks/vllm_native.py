"""Rank 0 towards vLLM's own NCCL receiver, as an unmodified `vllm serve` runs it, on another GPU: packed and not."""

from __future__ import annotations

import base64
import time
from typing import Any

from gpu_checks.member import Member, obey
from gpu_checks.weights import fingerprints, synthetic

TIMEOUT_S = 120.0
CHUNK_BYTES = 1 << 26


def serve(inbox: Any, outbox: Any, device: str) -> None:
    """vLLM's code alone: its communicator, its consumer. Ends with the process."""
    import torch
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, uid_init_process_group
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_consumer

    torch.cuda.set_device(device)
    group: Any = None

    def join(unique_id_b64: str) -> None:
        nonlocal group
        info = NCCLWeightTransferInitInfo(rank_offset=1, world_size=2, nccl_unique_id_b64=unique_id_b64)
        group = uid_init_process_group(info.nccl_unique_id_bytes, 1, 2, torch.cuda.current_device())
        torch.cuda.synchronize()

    def packed(declared: list[Any]) -> dict[str, str]:
        found: dict[str, Any] = {}
        packed_nccl_broadcast_consumer(
            iterator=iter(declared), group=group, src=0, post_unpack_func=found.update,
            buffer_size_bytes=CHUNK_BYTES, num_buffers=2, device=torch.device(device),
        )  # fmt: skip
        torch.cuda.synchronize()
        return fingerprints(found.items())

    def unpacked(declared: list[Any]) -> dict[str, str]:
        found: dict[str, Any] = {}
        for name, (shape, dtype) in declared:
            found[name] = torch.empty(shape, dtype=dtype, device=device)
            group.broadcast(found[name], src=0, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        return fingerprints(found.items())

    obey(inbox, outbox, {"join": join, "packed": packed, "unpacked": unpacked})


def check_vllm_native(megabytes: int) -> dict[str, Any]:
    """cuda:0 to cuda:1. Raises RuntimeError where what arrived is not what was sent."""
    import torch

    from headrace.transport.weights.collective.communicator import join, make_unique_id
    from headrace.transport.weights.collective.vllm_native import broadcast, warm_up
    from headrace.transport.weights.layout import DTYPES, build_layout, flatten_into

    tensors = synthetic(megabytes, "cuda:0")
    layout = build_layout(tensors, bucket_bytes=64 << 20)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8, device="cuda:0")
    flatten_into(buffer, tensors, layout)
    torch.cuda.synchronize()
    manifest = layout.manifest(version=1, step=1, transport="nccl", location="", checksums=(0,) * len(layout.bounds))
    declared = [(spec.name, (list(spec.shape), DTYPES[spec.dtype])) for spec in manifest.tensors]
    wanted = fingerprints((name, tensors[name]) for name, _ in declared)
    member = Member(serve, "cuda:1")
    row: dict[str, Any] = {"check": "nccl into vLLM's own receiver", "bytes": manifest.nbytes}
    try:
        unique_id = make_unique_id("cupy")
        member.tell("join", base64.b64encode(unique_id).decode())
        communicator = join("cupy", unique_id, rank=0, world_size=2, timeout_s=TIMEOUT_S, device="cuda:0")
        warm_up(communicator, timeout_s=TIMEOUT_S)
        member.answer()
        for packed in (True, False):
            name = "packed" if packed else "unpacked"
            for _ in range(2):  # the first connects
                member.tell(name, declared)
                started = time.perf_counter()
                broadcast(communicator, manifest, buffer, packed=packed, timeout_s=TIMEOUT_S, chunk_bytes=CHUNK_BYTES)
                row[f"{name}_gb_per_s"] = manifest.nbytes / (time.perf_counter() - started) / 1e9
                if member.answer() != wanted:
                    raise RuntimeError(f"what arrived ({name}) is not what was sent")
        communicator.destroy()
    finally:
        member.close()
    return row
