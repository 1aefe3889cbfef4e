"""What the checks send, how they know it again, and what a plain copy of it takes. Any device."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

ROUNDS = 5


def synthetic(megabytes: int, device: str) -> dict[str, Any]:
    """bfloat16 tensors of 16 MB (fewer bytes: of that size), one of them tied to another, one strided."""
    import torch

    torch.manual_seed(0)
    rows = 2048 if megabytes >= 32 else 64 * megabytes
    tensors = {
        f"layer.{n}.weight": torch.randn(rows, 4096, device=device).bfloat16() for n in range(max(2, megabytes // 16))
    }
    return {**tensors, "tied.weight": tensors["layer.0.weight"], "strided.weight": tensors["layer.1.weight"].t()}


def fingerprints(tensors: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Of each tensor's bytes, in the order of its elements, with shape and dtype."""
    import torch
    import xxhash

    return {
        name: f"{tensor.dtype} {tuple(tensor.shape)} "
        + xxhash.xxh3_128_hexdigest(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        for name, tensor in tensors
    }


def device_copy_gb_per_s(tensors: dict[str, Any]) -> float:
    """Reading and writing each byte once, as the memory of the device allows."""
    import torch

    source = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    target = torch.empty_like(source)
    seconds = []
    for _ in range(ROUNDS):
        synchronize(source.device)
        started = time.perf_counter()
        target.copy_(source)
        synchronize(source.device)
        seconds.append(time.perf_counter() - started)
    return float(source.nbytes / min(seconds) / 1e9)


def synchronize(device: Any) -> None:
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
