"""Fill a run's model folder from one that lies elsewhere, by hard links where the file system allows: no bytes move."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def link_folder(source: Path, target: Path) -> Path:
    """Every file directly in `source`, under its name in `target` (made here); symbolic links are followed. Nothing
    that uses a model folder writes into it, so that sharing the bytes is safe."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        goal = target / path.name
        goal.unlink(missing_ok=True)
        try:
            os.link(path.resolve(), goal)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(path, goal)
    return target
