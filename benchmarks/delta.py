"""What weights=delta saves: real optimizer steps of SmolLM2-135M in bfloat16, encoded, and sent over 1 Gbit/s.

    python benchmarks/delta.py [--quick] [--json FILE] [--engine vllm|torch] [--lr LR …]

First table, by learning rate (medians over consecutive versions):

    changed     share of elements whose bfloat16 bits differ from the version before
    sent        bytes of the delta; entropy: of the mask of changed elements and of the differences, zeroth order;
                ratio: sent over entropy (wanted: at most 1.3)      encode, decode: seconds of one thread

Second table, two hosts played by two network namespaces with `tbf` between them, an engine under load on the far one:

    update      from the learner's announcement until the engine serves the version
    pause       how long the engine does not decode; beside that of an engine on the learner's own host (shm), of which
                it may be 1.2 times

The link needs root, `ip` and `tc`; where they are not to be had it is left out, and said so.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from delta_run.netns import NoNamespaces, Side, limited_link  # noqa: E402

RATE = "1gbit"
START_S = 400.0
Rows = list[dict[str, Any]]


def train(folder: Path, lrs: list[float], options: argparse.Namespace) -> tuple[Rows, Rows]:
    """(codec rows, saved versions)."""
    import torch
    from delta_run.codec import measure
    from delta_run.versions import Training

    from headrace.launch.models import GgufPackage

    GgufPackage(cache_dir=str(folder / "models"), dtype="bfloat16").prepare(folder / "model", 0)
    texts = sorted([*ROOT.parent.glob("docs/*.md"), *ROOT.parent.glob("docs/decisions/*.md")])
    sequences, tokens = (2, 64) if options.quick else (4, 128)
    training = Training(folder / "model", texts, sequences=sequences, tokens=tokens)
    rows: Rows = []
    saved: Rows = []
    for lr in lrs:
        before = None
        versions = training.versions(lr, warm_up=1 if options.quick else 10, num=2 if options.quick else 5)
        for number, (manifest, buffer) in enumerate(versions):
            if before is not None:
                rows.append({"lr": lr, **measure(manifest, before, buffer)})
                print(f"lr {lr:g}, version {number}: {rows[-1]['changed']:.2%} changed", file=sys.stderr, flush=True)
            path = folder / f"version-{lr:g}-{number}.pt"
            torch.save({"manifest": manifest, "buffer": torch.from_numpy(buffer)}, path)
            saved.append({"path": str(path), "lr": lr, "first": before is None})
            before = buffer
    return rows, saved


def play(how: str, near: Side, far: Side, saved: Rows, folder: Path, engine: str) -> Rows:
    """One run of the two hosts; a row for each version but the first of each learning rate."""
    out = folder / f"{how}.json"
    here = {"run_id": f"delta-bench-{os.getpid()}", "keys": str(folder / f"{how}.keys"), "out": str(out),
            "directory": str(folder / f"{how}.directory"), "versions": saved, "delta": how == "delta",
            "model": str(folder / "model"), "engine": engine, "in_flight": 4,
            "node": "training", "address": near.address}  # fmt: skip
    there = {**here, "node": "rollout", "address": far.address}
    roles = [("learner", near, here), ("engine", near, here) if how == "shm" else ("engine", far, there)]
    if how != "shm":
        roles.append(("relay", far, there))
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for role, side, settings in roles:
            path = folder / f"{how}-{role}.json"
            path.write_text(json.dumps(settings))
            command = [*side.prefix, sys.executable, "-m", "delta_run.hosts", role, str(path)]
            with (folder / f"{how}-{role}.log").open("w") as log:
                environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
                running[role] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        end_s = time.monotonic() + START_S + 20 * len(saved)
        while running["learner"].poll() is None:
            dead = [role for role, process in running.items() if role != "learner" and process.poll() is not None]
            if dead or time.monotonic() > end_s:
                text = "".join(f"\n--- {p.name}\n{p.read_text()[-2000:]}" for p in folder.glob(f"{how}-*.log"))
                raise RuntimeError(f"{how}: {dead or 'it lasts too long'}{text}")
            time.sleep(0.2)
        if not out.exists():
            raise RuntimeError(f"{how}: {(folder / f'{how}-learner.log').read_text()[-3000:]}")
    finally:
        for process in reversed(running.values()):
            process.terminate()
        for process in running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    rows: Rows = json.loads(out.read_text())
    return [{"how": how, **row} for row in rows if not row["first"]]


def medians(rows: Rows, by: tuple[str, ...], keys: tuple[str, ...]) -> Rows:
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in by), []).append(row)
    return [
        {**dict(zip(by, group, strict=True)), "versions": len(members),
         **{key: statistics.median(row[key] for row in members) for key in keys if key in members[0]}}
        for group, members in groups.items()
    ]  # fmt: skip


def table(rows: Rows, columns: dict[str, tuple[str, float, str]]) -> str:
    """columns: title → (key, factor, format)."""
    lines = ["".join(title.rjust(12) for title in columns)]
    for row in rows:
        cells = (f"{row[k] * f:{spec}}" if isinstance(row.get(k), float | int) else str(row.get(k, "-"))
                 for k, f, spec in columns.values())  # fmt: skip
        lines.append("".join(cell.rjust(12) for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one learning rate, two versions, the torch engine")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--engine", choices=("vllm", "torch"))
    parser.add_argument("--lr", type=float, nargs="*")
    options = parser.parse_args()
    lrs = options.lr or ([1e-5] if options.quick else [1e-6, 1e-5, 1e-4])
    engine = options.engine or ("torch" if options.quick else "vllm")
    result: dict[str, Any] = {"engine": engine, "rate": RATE}
    with tempfile.TemporaryDirectory(prefix="headrace-delta-") as name:
        folder = Path(name)
        codec, saved = train(folder, lrs, options)
        keys = ("changed", "bytes", "sent_bytes", "entropy_bytes", "entropy_xor_bytes", "ratio", "encode_s", "decode_s")
        result["rows"] = medians(codec, ("lr",), keys)
        columns = {"lr": ("lr", 1, "g"), "changed %": ("changed", 100, ".2f"), "MB": ("bytes", 1e-6, ".1f"),
                   "sent MB": ("sent_bytes", 1e-6, ".2f"), "entropy MB": ("entropy_bytes", 1e-6, ".2f"),
                   "of xor MB": ("entropy_xor_bytes", 1e-6, ".2f"), "ratio": ("ratio", 1, ".3f"),
                   "encode s": ("encode_s", 1, ".2f"), "decode s": ("decode_s", 1, ".2f")}  # fmt: skip
        print(table(result["rows"], columns))
        worst = max(row["ratio"] for row in result["rows"])
        print(f"bytes over entropy: {worst:.3f} at most, wanted at most 1.3: {'met' if worst <= 1.3 else 'MISSED'}\n")
        try:
            with limited_link(RATE) as (near, far):
                link: Rows = []
                for how in ("shm", "stream", "delta"):
                    print(f"{how}, {engine} …", file=sys.stderr, flush=True)
                    link += play(how, near, far, saved, folder, engine)
                keys = ("update_s", "pause_s", "load_s", "relay_received_bytes", "relay_fetch_s")
                result["link"] = medians(link, ("how", "lr"), keys)
        except NoNamespaces as error:
            result["link_skipped"] = str(error)
            print(f"the link was left out: {error} (it needs root, ip and tc)")
        if options.json:
            options.json.write_text(json.dumps(result, indent=2))
    if "link" in result:
        columns = {"": ("how", 1, ""), "lr": ("lr", 1, "g"), "update s": ("update_s", 1, ".3f"),
                   "received MB": ("relay_received_bytes", 1e-6, ".2f"), "fetch s": ("relay_fetch_s", 1, ".3f"),
                   "pause ms": ("pause_s", 1e3, ".1f"), "load ms": ("load_s", 1e3, ".1f")}  # fmt: skip
        print(f"{engine} engine, link of {RATE}\n{table(result['link'], columns)}")
        pause = {how: statistics.median(r["pause_s"] for r in result["link"] if r["how"] == how)
                 for how in ("shm", "stream", "delta")}  # fmt: skip
        for how in ("stream", "delta"):
            ratio = pause[how] / pause["shm"]
            print(f"pause of {how} over shm's: {ratio:.2f}, wanted at most 1.2: {'met' if ratio <= 1.2 else 'MISSED'}")


if __name__ == "__main__":
    main()
