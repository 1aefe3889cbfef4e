"""Makes the modules beside it importable: tests are no package, and schedules.py is a script too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
