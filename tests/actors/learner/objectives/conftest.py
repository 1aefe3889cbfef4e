"""Lets the tests import the twins, which lie beside `benchmarks/objectives.py`."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[4] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.insert(0, BENCHMARKS)
