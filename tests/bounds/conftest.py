"""The bounds are proved on the small topology of tests/schedules, whose modules are made importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "schedules")]
