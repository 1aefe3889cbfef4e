"""What the preflight asks of a model source. A source of one's own is a class with `prepare`, named by `_target_`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ModelSource(Protocol):
    def prepare(self, target_dir: Path, seed: int) -> Path:
        """Fill `target_dir`, which may not exist yet, with a folder that plain transformers loads (config, weights,
        tokenizer), and return it. The same seed gives the same weights. Called once for a run, in a child process
        that ends afterwards. Raises ValueError naming the config key and what to do."""
