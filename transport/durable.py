"""What survives a machine that loses its power: a file, or what a folder lists, is on the disk when this returns."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """A file or a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
