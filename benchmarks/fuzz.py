"""Hostile bytes against the codec and a live mailbox, by the million.

    python benchmarks/fuzz.py --frames 1000000 --seed 0 --json fuzz.json

Every message is either delivered or counted, nothing escapes, the actor answers after each thousand, nothing is left of
a peer that has gone, and memory stays flat. Ends with 1 where that is not so; the message is in the error.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path

from fuzzing.target import Fuzzing

from headrace.transport import run_virtual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 frames")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.frames = 50_000
    logging.disable(logging.CRITICAL)
    began_s = time.perf_counter()
    result = run_virtual(Fuzzing(arguments.seed).run(arguments.frames))
    took_s = time.perf_counter() - began_s
    result |= {"seed": arguments.seed, "took_s": round(took_s, 1), "frames_per_s": round(arguments.frames / took_s)}
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
