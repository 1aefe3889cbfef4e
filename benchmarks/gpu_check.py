"""What needs GPUs, in one command: does it work on this machine, and how fast? Says what it skipped, and why.

    python benchmarks/gpu_check.py             two GPUs or more: ipc, nccl, vLLM's own nccl    [--megabytes 1024]
    python benchmarks/gpu_check.py --single    one GPU: ipc, and a SmolLM2 run of minutes      [--json FILE]

Each check sends versions from this process to others, one for each GPU, compares what arrived with what was sent, and
prints GB/s beside a plain copy on the device; `nccl` also has a receiver killed in the middle of a version. --cpu
runs the same code where there is no GPU: nccl over shared memory, and a run of a few steps. Exit code 0
where all that could run was right, 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_checks.ipc import check_ipc
from gpu_checks.nccl import check_nccl
from gpu_checks.recipe import A_FEW_STEPS_ON_A_CPU, SMOLLM2_ON_ONE_GPU, check_recipe, curve
from gpu_checks.vllm_native import check_vllm_native

NO_GPU = "this machine has no GPU that torch can use"


@dataclass
class Findings:
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def check(self, name: str, run: Callable[[], dict[str, Any]], why_not: str | None = None) -> None:
        """Run it, unless there is a reason not to; a check that failed is the finding, and the others go on."""
        if why_not is not None:
            self.skipped.append(f"{name}: {why_not}")
            print(f"SKIPPED {self.skipped[-1]}", flush=True)
            return
        try:
            row = run()
        except Exception as error:
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
            print(f"FAILED {self.failed[-1]}", flush=True)
            return
        self.rows.append(row)
        print(
            ", ".join(f"{key} {_short(value)}" for key, value in row.items() if not isinstance(value, list)), flush=True
        )
        if "train_reward" in row:
            print(curve(row), flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_checks(options: argparse.Namespace, num_gpus: int) -> Findings:
    found = Findings()
    if options.cpu:
        found.check("ipc", lambda: check_ipc(options.megabytes), "device memory cannot be mapped without a device")
        found.check("nccl", lambda: _nccl(options.megabytes, "memory", ["cpu"] * 3))
        found.check(
            "vllm_native", lambda: check_vllm_native(options.megabytes),
            "vLLM's communicator is CUDA's; test_vllm_native.py runs its receiving code over shared memory",
        )  # fmt: skip
        found.check("recipe", lambda: check_recipe(A_FEW_STEPS_ON_A_CPU, on_gpu=False))
        return found
    no_gpu = None if num_gpus else NO_GPU
    no_cupy = no_gpu or (None if importlib.util.find_spec("cupy") else "CuPy is not installed (headrace[cuda])")
    no_vllm = None if importlib.util.find_spec("vllm") else "vLLM is not installed"
    found.check("ipc", lambda: check_ipc(options.megabytes), no_cupy)
    if options.single:
        found.check("nccl", dict, no_gpu or "--single: what one GPU can show; run it without, on two GPUs or more")
        found.check("recipe", lambda: check_recipe(SMOLLM2_ON_ONE_GPU, on_gpu=True), no_cupy or no_vllm)
        return found
    too_few = no_cupy or (None if num_gpus > 1 else f"two GPUs are needed, there is {num_gpus}")
    devices = [f"cuda:{index}" for index in range(num_gpus)]
    found.check("nccl", lambda: _nccl(options.megabytes, "cupy", devices), too_few)
    found.check("vllm_native", lambda: check_vllm_native(options.megabytes), too_few or no_vllm)
    found.check("recipe", dict, no_gpu or "only with --single")
    return found


def _nccl(megabytes: int, communicator: str, devices: list[str]) -> dict[str, Any]:
    bucket_bytes = min(64 << 20, max(1 << 16, (megabytes << 20) // 64))  # many, so that one can be in the middle
    return check_nccl(
        megabytes,
        communicator=communicator,
        sender=devices[0],
        receivers=devices[1:],
        bucket_bytes=bucket_bytes,
        deadline_s=2.0 if communicator == "memory" else 10.0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", action="store_true", help="only what one GPU can show")
    parser.add_argument("--cpu", action="store_true", help="the same code without a GPU")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus and not options.cpu:
        print(f"{num_gpus} GPU(s): {torch.cuda.get_device_name(0)}", flush=True)
    found = run_checks(options, num_gpus)
    if not found.rows and not found.failed:
        print("NOTHING WAS CHECKED: all of it was skipped, for the reasons above", flush=True)
    if options.json:
        options.json.write_text(json.dumps(vars(found), indent=2))
    sys.exit(bool(found.failed))


if __name__ == "__main__":
    main()
