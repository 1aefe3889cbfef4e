"""What needs a GPU, in one command: does it work on this machine, and how fast? Says what it skipped, and why.

    python benchmarks/gpu_check.py --single [--megabytes 1024] [--json FILE]    one GPU: CUDA IPC between two processes

Without --single it says that NCCL is not checked here yet: tests/transport/weights/collective does, with three GPUs.

Each check sends a version from this process to another one, compares what arrived with the checksums of what was sent,
and prints GB/s beside a plain copy on the device. Exit code 0 where all that could run was right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS = 5
TIMEOUT_S = 120.0


def synthetic(megabytes: int, device: str) -> dict[str, Any]:
    """bfloat16 tensors of 16 MB, one of them tied to another, one strided."""
    import torch

    torch.manual_seed(0)
    tensors = {
        f"layer.{n}.weight": torch.randn(2048, 4096, device=device).bfloat16() for n in range(max(2, megabytes // 16))
    }
    return {**tensors, "tied.weight": tensors["layer.0.weight"], "strided.weight": tensors["layer.1.weight"].t()}


def device_copy_gb_per_s(tensors: dict[str, Any]) -> float:
    """Reading and writing each byte once, as the memory of the device allows."""
    import torch

    source = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    target = torch.empty_like(source)
    seconds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return float(source.nbytes / min(seconds) / 1e9)


def receive_by_ipc(inbox: Any, outbox: Any) -> None:
    """The other process: map, verify, copy, for each manifest that comes."""
    import torch

    from headrace.transport.weights import open_weights

    while (manifest := inbox.get()) is not None:
        try:
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
            totals = {name: float(tensor.float().sum()) for name, tensor in copies.items()}
            outbox.put(("ok", opened - started, verified - opened, loaded - verified, totals))
        except Exception as error:  # whatever it was, the parent says it
            outbox.put(("failed", f"{type(error).__name__}: {error}"))


def check_ipc(megabytes: int) -> dict[str, Any]:
    import torch

    from headrace.transport.weights import SenderSettings, make_sender

    tensors = synthetic(megabytes, "cuda:0")
    wanted = {name: float(tensor.float().sum()) for name, tensor in tensors.items()}
    sender = make_sender("ipc", SenderSettings(run_id="gpu-check", device="cuda:0"))
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    other = context.Process(target=receive_by_ipc, args=(inbox, outbox), daemon=True)
    other.start()
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
            inbox.put(manifest)
            answer = outbox.get(timeout=TIMEOUT_S)
            if answer[0] != "ok":
                raise RuntimeError(answer[1])
            _, open_s, verify_s, load_s, found = answer
            if found != wanted:
                raise RuntimeError("what arrived is not what was sent")
            rows.append((stage_s, open_s, verify_s, load_s))
            sender.release(version)
    finally:
        inbox.put(None)
        other.join(10)
        sender.close()
    stage_s, open_s, verify_s, load_s = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    copy = device_copy_gb_per_s(tensors)
    return {
        "transport": "ipc",
        "bytes": manifest.nbytes,
        "stage_s": stage_s,
        "open_s": open_s,
        "verify_s": verify_s,
        "load_s": load_s,
        "gb_per_s": manifest.nbytes / (stage_s + open_s) / 1e9,
        "device_copy_gb_per_s": copy,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", action="store_true", help="only what one GPU can show")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    rows: list[dict[str, Any]] = []
    skipped: list[str] = []
    failed: list[str] = []
    if num_gpus:
        print(f"{num_gpus} GPU(s): {torch.cuda.get_device_name(0)}", flush=True)
        try:
            rows.append(check_ipc(options.megabytes))
        except Exception as error:  # a check that failed is the finding
            failed.append(f"ipc: {type(error).__name__}: {error}")
    else:
        skipped.append("ipc: this machine has no GPU that torch can use")
    if not options.single:
        skipped.append("nccl: not checked here yet; run pytest tests/transport/weights/collective with three GPUs")
    for row in rows:
        print(
            ", ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )
    for text in skipped:
        print(f"SKIPPED {text}")
    for text in failed:
        print(f"FAILED {text}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "skipped": skipped, "failed": failed}, indent=2))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
