"""weights=ipc between two processes on one GPU: staged here, mapped, verified and copied there."""

from __future__ import annotations

import statistics
import time
from typing import Any

from gpu_checks.member import Member, obey
from gpu_checks.weights import ROUNDS, device_copy_gb_per_s, fingerprints, synthetic


def serve(inbox: Any, outbox: Any, device: str) -> None:
    """The other process: map, verify, copy, for each manifest that comes."""
    import torch

    from headrace.transport.weights import open_weights

    def receive(manifest: Any) -> tuple[float, float, float, dict[str, str]]:
        started = time.perf_counter()
        receiver = open_weights(manifest)
        opened = time.perf_counter()
        receiver.verify()
        verified = time.perf_counter()
        copies = {name: tensor.clone() for name, tensor in receiver.tensors(include_tied=True)}
        torch.cuda.synchronize()
        loaded = time.perf_counter()
        receiver.check_unchanged()
        receiver.close()
        return opened - started, verified - opened, loaded - verified, fingerprints(copies.items())

    obey(inbox, outbox, {"receive": receive})


def check_ipc(megabytes: int) -> dict[str, Any]:
    """Raises RuntimeError where what arrived is not what was sent."""
    import torch

    from headrace.transport.weights import SenderSettings, make_sender

    tensors = synthetic(megabytes, "cuda:0")
    wanted = fingerprints(tensors.items())
    sender = make_sender("ipc", SenderSettings(run_id="gpu-check", device="cuda:0"))
    member = Member(serve, "cuda:0")
    rows = []
    try:
        for version in range(1, ROUNDS + 2):
            torch.cuda.synchronize()
            started = time.perf_counter()
            staged = sender.stage(tensors, version=version, step=version)
            stage_s = time.perf_counter() - started
            if staged is None:
                raise RuntimeError("no staging buffer was free")
            manifest = staged.seal()
            member.tell("receive", manifest)
            open_s, verify_s, load_s, found = member.answer()
            if found != wanted:
                raise RuntimeError("what arrived is not what was sent")
            rows.append((stage_s, open_s, verify_s, load_s))
            sender.release(version)
    finally:
        member.close()
        sender.close()
    stage_s, open_s, verify_s, load_s = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    return {
        "check": "ipc",
        "bytes": manifest.nbytes,
        "stage_s": stage_s,
        "open_s": open_s,
        "verify_s": verify_s,
        "load_s": load_s,
        "gb_per_s": manifest.nbytes / (stage_s + open_s) / 1e9,
        "device_copy_gb_per_s": device_copy_gb_per_s(tensors),
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }
