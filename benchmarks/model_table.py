"""Do updates of every kind of model arrive, by every transport? Held to plain transformers, token by token.

    python benchmarks/model_table.py [--quick] [--json FILE] [--model NAME …] [--transport NAME …]

Made-up tiny models (model_table_run/models.py) with random float32 weights. A real vLLM on the CPU, started once for
each model, takes the weights "first" and then "second" by each transport, through the real parameter server, generator
and relay, and samples at temperature 1 after each; a row's gap is the largest |Δ| between the log-probs that it reports
and those of a transformers forward with the same weights. `delta`: "second" comes as what changed upon a version near
it. `nccl`: over the communicator in shared memory; `nccl_in_place`: weights.staging=false. Ends with 1 where a gap is
out of bound or an update failed. --quick: Llama only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

from model_table_run.hosts import TRANSPORTS
from model_table_run.models import CONFIGS
from model_table_run.table import Row, run_model

_HEAD = ("model", "transport", "tensors", "bytes", "max gap", "mean gap", "bound", "ok")
_WIDTHS = (10, 14, 8, 9, 9, 9, 8, 4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--transport", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--quick", action="store_true", help="one model: the first of --model")
    parser.add_argument("--json", type=Path, help="where the rows are written")
    given = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("vllm is not installed: nothing to show")
        return 0
    print(_line(_HEAD), flush=True)
    rows: list[Row] = []
    for name in given.model[: 1 if given.quick else None]:
        began_s = time.perf_counter()
        rows += run_model(name, given.transport, _show)
        print(f"      {time.perf_counter() - began_s:.0f} s, start and stop of vLLM included", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"rows": [row.json() for row in rows]}, indent=1) + "\n")
    return int(not all(row.ok for row in rows))


def _show(row: Row) -> None:
    gaps = [f"{value:.1e}" for value in (row.max_gap, row.mean_gap, row.bound)]
    print(_line((row.model, row.transport, row.tensors, row.nbytes, *gaps, "yes" if row.ok else "NO")), flush=True)
    if row.problem:
        print(f"      {row.problem}", flush=True)


def _line(cells: tuple[object, ...]) -> str:
    left = [f"{cell:<{width}}" for cell, width in zip(cells[:2], _WIDTHS[:2], strict=True)]
    return " ".join(left + [f"{cell:>{width}}" for cell, width in zip(cells[2:], _WIDTHS[2:], strict=True)])


if __name__ == "__main__":
    sys.exit(main())
