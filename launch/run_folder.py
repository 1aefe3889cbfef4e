"""The folder of one run: made exclusively, named by date and time, with `latest` pointing to the newest. Called by
the launcher.

Holds no knowledge of what actors write there; docs/architecture.md lists it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

LATEST = "latest"
RUN_NAME = "at most 100 letters, digits, '.', '_' and '-'"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of a launch that is being prepared, and its resolved configuration. lock: held while it is open.
    abandon: leaves the folder as it was before this launch."""

    path: Path
    config: dict[str, Any]
    lock: IO[str]
    abandon: Callable[[], None]


def is_run_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name) is not None


def create_run_folder(root: Path, name: str, now: datetime) -> Path:
    """`root/<date>/<time>-<name>`, or with -2, -3, … where that exists: mkdir is the arbiter, so that launches in the
    same second get folders of their own. Returns an absolute path."""
    if not is_run_name(name):
        raise ValueError(f"run.name must be {RUN_NAME}, got {name!r}")
    day = root.absolute() / now.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    stem = f"{now.strftime('%H%M%S')}-{name}"
    for attempt in range(1, 10_000):
        folder = day / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        (folder / "logs").mkdir()
        return folder
    raise FileExistsError(f"{day} holds 10,000 runs of this second; choose another run.name or run.root")


def lock_run_folder(folder: Path) -> IO[str] | None:
    """The run is this launcher's until the file is closed, or it ends in whatever way. None where another has it."""
    lock = open(folder / ".lock", "w", encoding="utf-8")  # noqa: SIM115 (open as long as the run is held)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def remove_run_folder(folder: Path) -> None:
    """Nothing of a run that did not come about stays, nor the folders above it that were made for it alone."""
    shutil.rmtree(folder)
    for parent in (folder.parent, folder.parent.parent):
        try:
            parent.rmdir()
        except OSError:  # other runs are in it
            return


def point_latest(root: Path, folder: Path) -> None:
    """Make `root/latest` a relative link to `folder`, in one step, so that it always points to some run."""
    staged = root / f".{LATEST}-{os.getpid()}"
    staged.unlink(missing_ok=True)
    staged.symlink_to(os.path.relpath(folder, root), target_is_directory=True)
    staged.replace(root / LATEST)


def find_run(root: Path, run: str | None) -> Path:
    """The run that a user means: a path, or the newest. Raises FileNotFoundError that says what to give."""
    folder = Path(run) if run else root / LATEST
    if not run and not folder.exists():
        raise FileNotFoundError(
            f"there is no run in {root} here yet; headrace launch begins one, or give the path of a run folder"
        )
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} is no run folder (it has no config.yaml); give the path of one, as in {root}/latest"
        )
    return folder.resolve()


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    text = "# The resolved configuration of this run.\n" + yaml.safe_dump(
        dict(config), sort_keys=False, allow_unicode=True
    )
    write_atomically(folder / "config.yaml", text)


def parse_config(text: str) -> object:
    """Raises ValueError where the text is no YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def read_config(folder: Path) -> dict[str, object]:
    path = folder / "config.yaml"
    try:
        loaded = parse_config(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} is damaged: it does not hold a mapping")
    return loaded


def write_json(path: Path, value: object) -> None:
    write_atomically(path, json.dumps(value, indent=2, sort_keys=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    staged = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        staged.write_text(text)
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        error.filename = str(path)  # a full disk does not say which file it had no room for
        raise
