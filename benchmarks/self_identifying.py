"""Every token proves which weights made it, through real updates, failed updates and kills.

    python benchmarks/self_identifying.py [--updates N] [--kills N] [--engine torch|vllm] [--tensor-parallel N]
                                          [--seed N] [--quick] [--json FILE] [--folder DIR]

A learner publishes models whose greedy next token is their version (identifying/weights.py) through the real parameter
server, shared memory, generator and engine, each a supervised process, while 24 requests are in flight. One update in
ten is damaged before it is announced (a byte flipped, the segment removed, a wrong shape): it must be refused, and the
version before it must serve on. One in five is followed at once by the next. The generator, or a process of its engine,
is killed with SIGKILL in an update, while it decodes or while it starts, and comes back. Checked of every token that
was sampled: it is that of the version it claims, versions never decrease within a completion, no request is answered by
an older version than was served when it was made. Ends with 1 where anything is wrong; the run's folder stays then.

Without --engine: the torch engine, then vLLM at tensor parallel 1 and 2 where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from identifying.run import Setting, run

_COLUMNS = (
    "engine",
    "tp",
    "updates",
    "kills",
    "tokens",
    "wrong",
    "failed",
    "mixed",
    "lost",
    "update s",
    "s",
    "total s",
)


def settings_of(given: argparse.Namespace) -> list[Setting]:
    engines = [given.engine] if given.engine else ["torch", "vllm"]
    found = []
    for engine in engines:
        if engine == "vllm" and importlib.util.find_spec("vllm") is None:
            print("vllm is not installed: left out")
            continue
        updates = given.updates or {"torch": 1000, "vllm": 200}[engine] // (10 if given.quick else 1)
        kills = given.kills if given.kills is not None else (1 if given.quick else {"torch": 8, "vllm": 4}[engine])
        ways = [given.tensor_parallel] if given.tensor_parallel else [1] if engine == "torch" or given.quick else [1, 2]
        found += [Setting(engine, updates, kills, way, given.seed) for way in ways]
    return found


def line_of(row: dict[str, Any]) -> str:
    names = ("engine", "tensor_parallel", "updates", "kills", "tokens", "wrong", "failed_updates", "mixed", "lost")
    cells = [str(row[name]) for name in names] + [f"{row[name]:.2f}" for name in ("update_s", "seconds", "total_s")]
    return " ".join(f"{cell:>9}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, help="versions published (torch 1000, vllm 200)")
    parser.add_argument("--kills", type=int, help="of a generator (torch 8, vllm 4)")
    parser.add_argument("--engine", choices=["torch", "vllm"])
    parser.add_argument("--tensor-parallel", type=int, help="of vllm (1, then 2)")
    parser.add_argument("--seed", type=int, default=0, help="of faults, kills and requests")
    parser.add_argument("--quick", action="store_true", help="a tenth of the updates, one kill")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    parser.add_argument("--folder", type=Path, help="where runs with problems stay (default: a new folder)")
    given = parser.parse_args()
    if given.updates is not None and given.updates < 3:
        parser.error(f"--updates must be at least 3, got {given.updates}")
    place = (given.folder or Path(tempfile.mkdtemp(prefix="headrace-identifying-"))).absolute()
    print(" ".join(f"{name:>9}" for name in _COLUMNS), flush=True)
    rows = []
    for setting in settings_of(given):
        folder = place / f"{setting.engine}-{setting.tensor_parallel}"
        row = run(setting, folder)
        rows.append(row)
        print(line_of(row), *row["problems"], sep="\n      ", flush=True)
        if not row["problems"]:
            shutil.rmtree(folder)
        if given.json:
            given.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return int(any(row["problems"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
