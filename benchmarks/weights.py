"""What an update of the weights costs, for every transport of one host, in the real system with a real engine.

    python benchmarks/weights.py [--quick] [--json FILE] [--transport NAME …] [--model NAME …]

Each line is a run of its own: learner, parameter server and generator in processes as `headrace launch` starts them,
first with vLLM decoding while the updates come (pause, load), then with updates beside optimizer steps (all else).
Seconds are medians.

    stage    the learner copies; all that training waits for          send    until the bytes are near the engine
    seal     checksums, beside training                               verify  the engine's checksums, beside decoding
    pause    from asking the engine to pause until it decodes again   load    of that, into the model
    step     a learner step with an update on its way over one without

Models: tiny (made from scratch), smollm2 (135M, bfloat16), synthetic-1gb (made from scratch, 1 GB in bfloat16).
GB/s: bytes that travel over stage + send; beside it a broadcast of these by gloo, and a memcpy, timed in turn with the
updates, of what staging reads (float32 masters: twice the bytes of bfloat16).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weights_run.gloo import broadcast_s

ROOT = Path(__file__).resolve().parent
TRANSPORTS = {
    "shm": ("weights=shm",),
    "shm, staging=false": ("weights=shm", "weights.staging=false"),
    "checkpoint": ("weights=checkpoint",),
    "nccl (memory)": ("weights=nccl",),
    "nccl (memory), staging=false": ("weights=nccl", "weights.staging=false"),
    "stream": ("weights=stream",),
    "delta": ("weights=delta",),
}
TWO_HOSTS = ("stream", "delta")


@dataclass(frozen=True)
class Model:
    overrides: tuple[str, ...]
    engine: str
    in_flight: int
    max_tokens: int
    updates: int
    steps: int
    sequences: int
    sequence_tokens: int


MODELS = {
    "tiny": Model(("model=scratch_llama",), "vllm", 64, 64, 30, 8, 64, 32),
    "smollm2": Model(("model=smollm2", "weights.dtype=bfloat16", "generator.engine.num_threads=2"), "vllm",
                     16, 24, 8, 4, 96, 64),
    "synthetic-1gb": Model(
        ("model=scratch_llama", "model.hidden_size=1536", "model.num_layers=16", "model.num_heads=24",
         "model.head_dim=64", "model.intermediate_size=5120", "inference.dtype=bfloat16", "weights.dtype=bfloat16",
         "generator.engine.num_threads=2", "learner.tokens_per_micro_batch=256"),
        "vllm", 4, 8, 5, 3, 16, 64),
}  # fmt: skip
QUICK = Model(("model=scratch_tiny",), "torch", 8, 8, 3, 2, 8, 16)


def run(model: Model, transport: str, *, root: Path) -> dict[str, Any]:
    """One run of the system; what its learner and its generator measured. The steps of `shm` alone are judged: for the
    other transports one pair must do."""
    out = root / f"learner-{time.time_ns()}.json"
    command = [
        sys.executable, "-m", "headrace.launch.cli", "launch", "--config-dir", str(ROOT / "weights_run" / "configs"),
        "experiment=weights_two_hosts" if transport in TWO_HOSTS else "experiment=weights_one_host",
        f"run.root={root}", f"generator/engine={model.engine}", f"learner.out={out}",
        f"learner.in_flight={model.in_flight}", f"learner.max_tokens={model.max_tokens}",
        f"learner.num_updates={model.updates}", f"learner.num_steps={model.steps if transport == 'shm' else 1}",
        f"learner.sequences={model.sequences}", f"learner.sequence_tokens={model.sequence_tokens}",
        *model.overrides, *TRANSPORTS[transport],
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})
    if done.returncode or not out.exists():
        raise RuntimeError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    folder = (root / "latest").resolve()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"learner": json.loads(out.read_text()), "records": records}


def row(name: str, model_name: str, measured: dict[str, Any]) -> dict[str, Any]:
    """The first update, which makes buffers and warms kernels, is left out."""
    learner = measured["learner"]
    last = 1 + learner["under_load_updates"]
    engine = [r for r in measured["records"] if r["stream"] == "weights" and r["step"] > 1]
    decoding, stepping = ([r for r in engine if (r["step"] <= last) == loaded] for loaded in (True, False))
    learner_records = [r for r in measured["records"] if r["stream"] == "weights/learner" and r["step"] > last]
    sender = [r for r in learner_records if "learner_stage_s" in r["values"]]  # a broadcast has a record of its own

    def median(records: list[dict[str, Any]], key: str) -> float:
        return statistics.median(r["values"][key] for r in records)

    found: dict[str, Any] = {
        "transport": name,
        "model": model_name,
        "bytes": int(median(sender, "nbytes")),
        "updates": len(engine),
        "pairs": len(learner["step_with_s"]),
        "stage_s": median(sender, "learner_stage_s"),
        "seal_s": median(sender, "learner_seal_s"),
        "send_s": median(stepping, "send_s"),
        "verify_s": median(stepping, "verify_s"),
        "pause_s": median(decoding, "pause_s"),
        "load_s": median(decoding, "load_s"),
        "memcpy_s": learner["memcpy_s"],
        "read_bytes": int(learner["read_bytes"]),
        "engine_step_s": learner["token_s"],
        "requests_running": median(decoding, "requests_running"),
        "learner_blocked_s": statistics.median(learner["blocked_s"]),
        "step_s": statistics.median(learner["step_without_s"]),
    }
    pairs = zip(learner["step_with_s"], learner["step_without_s"], strict=True)
    found["step_ratio"] = statistics.median(a / b for a, b in pairs)
    found["probe_s"] = median(sender, "learner_probe_s")
    found["gb_per_s"] = found["bytes"] / (found["stage_s"] + found["send_s"]) / 1e9
    found["memcpy_gb_per_s"] = found["read_bytes"] / found["memcpy_s"] / 1e9
    return found


def verdicts(found: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(what, found, allowed): for shm, as the project wants it."""
    if found["transport"] != "shm":
        return []
    checks = []
    if found["bytes"] > 100e6:
        blocked = found["learner_blocked_s"] / found["memcpy_s"]
        checks.append(("learner blocked / memcpy of the bytes read", blocked, 1.3))
        transfer = (found["stage_s"] + found["send_s"]) / found["memcpy_s"]
        checks.append(("stage + send / memcpy of the bytes read", transfer, 1 / 0.7))
    if found["step_s"] > 0.1:  # nobody trains in steps of milliseconds
        checks.append(("step ratio", found["step_ratio"], 1.05))
    if found["model"] == "smollm2":
        checks.append(("pause / load", found["pause_s"] / found["load_s"], 1.25))
    if found["model"] == "tiny":
        allowed = found["load_s"] + 1.5 * found["engine_step_s"] + 0.015
        checks.append(("pause / (load + 1.5 engine steps + 15 ms)", found["pause_s"] / allowed, 1.0))
    return checks


def table(rows: list[dict[str, Any]]) -> str:
    titles = ("transport", "model", "MB", "stage", "seal", "send", "verify", "pause", "load", "blocked", "memcpy",
              "ratio", "GB/s", "memcpy", "gloo")  # fmt: skip
    lines = ["".join(t.ljust(30 if i == 0 else 14 if i == 1 else 9) for i, t in enumerate(titles))]
    for r in rows:
        ms = (f"{1e3 * r[k]:.1f}" for k in ("stage_s", "seal_s", "send_s", "verify_s", "pause_s", "load_s",
                                            "learner_blocked_s", "memcpy_s"))  # fmt: skip
        cells = [r["transport"].ljust(30), r["model"].ljust(14), f"{r['bytes'] / 1e6:.1f}", *ms,
                 f"{r['step_ratio']:.3f}", f"{r['gb_per_s']:.2f}", f"{r['memcpy_gb_per_s']:.2f}",
                 f"{r['gloo_gb_per_s']:.2f}"]  # fmt: skip
        lines.append(cells[0] + cells[1] + "".join(cell.ljust(9) for cell in cells[2:]))
    legend = "(phases in ms; ratio: of steps; GB/s of stage + send, beside a memcpy and a gloo broadcast)"
    return "\n".join([*lines, legend])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model on the torch engine, few updates")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--transport", nargs="*", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--model", nargs="*", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    models = {"quick": QUICK} if options.quick else {name: MODELS[name] for name in options.model}
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    gloo: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-weights-") as folder:
        for model_name, model in models.items():
            for name in options.transport:
                print(f"{model_name}: {name} …", file=sys.stderr, flush=True)
                try:
                    measured = run(model, name, root=Path(folder))
                except RuntimeError as error:
                    failed.append(f"{model_name}, {name}: {error}")
                    continue
                found = row(name, model_name, measured)
                if found["bytes"] not in gloo:
                    gloo[found["bytes"]] = found["bytes"] / broadcast_s(found["bytes"]) / 1e9
                found["gloo_gb_per_s"] = gloo[found["bytes"]]
                rows.append(found)
                if options.json:
                    options.json.write_text(json.dumps({"rows": rows, "failed": failed}, indent=2))
    print(table(rows))
    for found in rows:
        for what, value, allowed in verdicts(found):
            verdict = f"wanted at most {allowed:.2f}: {'met' if value <= allowed else 'MISSED'}"
            print(f"{found['transport']}, {found['model']}: {what} {value:.3f}, {verdict}")
    for text in failed:
        print(f"FAILED {text}", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "failed": failed}, indent=2))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
