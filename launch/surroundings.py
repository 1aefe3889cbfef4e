"""What a configuration needs of the machine that it runs on: folders that can be written, models that are there, an
accelerator. Looks at the disk and, where a GPU is asked for, at torch; so it runs in the preflight.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.actors.learner.weight_files import weight_bytes
from headrace.launch.checks import ENGINE_ROLES, LOCAL_LAUNCHER, VLLM, evaluates_only, value_at
from headrace.launch.models.soundness import context_positions
from headrace.launch.numbers import leaves
from headrace.launch.problems import Problem, shorten
from headrace.launch.topology import ProcessPlan
from headrace.transport.weights.manifest import ITEM_BYTES
from headrace.transport.weights.segment import DIRECTORY

IN_SHARED_MEMORY = ("shm", "stream")
"""transports whose buffers are files in /dev/shm"""
WRITTEN_FOLDERS = ("grader.trajectories_dir", "learner.checkpoints_dir", "monitor.run_dir", "model.cache_dir")
WRITTEN_FILES = ("dispatcher.ledger_path", "learner.trained_path")


def check_folders(config: Mapping[str, Any]) -> list[Problem]:
    """Each place that an actor writes to, tried out: permissions alone do not tell (a read-only or special file
    system, a file in the way)."""
    places = [(key, Path(value)) for key in WRITTEN_FOLDERS if (value := _text(config, key))]
    places += [(key, Path(value).parent) for key in WRITTEN_FILES if (value := _text(config, key))]
    problems = []
    for key, folder in places:
        try:
            _try_to_write(folder.expanduser())
        except OSError as error:
            fix = f"it cannot be made or written: {error.strerror or error}"
            problems.append(Problem(key, repr(_text(config, key)), "a place that this user may write", fix))
    return problems


def check_journal(config: Mapping[str, Any]) -> list[Problem]:
    """One that is there is gone on from: whether it can be, is better known before anything starts."""
    path = _text(config, "dispatcher.ledger_path")
    if not path or not Path(path).expanduser().exists():
        return []
    from headrace.actors.dispatcher.journal import Journal, JournalDamaged

    try:
        Journal(path).close()
    except (JournalDamaged, OSError) as error:
        return [Problem("dispatcher.ledger_path", repr(path), "a journal that can be gone on from", str(error))]
    return []


def _try_to_write(folder: Path) -> None:
    """Leaves nothing behind: the folder itself is its actor's to make."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    Path(tempfile.mkdtemp(prefix=".headrace-", dir=folder)).rmdir()


def check_models(config: Mapping[str, Any], folder: Path) -> list[Problem]:
    """After the model was prepared in `folder`: every path of a model leads to one, and its context is long enough."""
    problems = []
    for key, value in leaves(config):
        if key.rpartition(".")[2] == "model_path" and _is_missing(value):
            fix = "correct the path, or leave it as it was: the run's own model"
            problems.append(Problem(key, shorten(value), "a model folder (with config.json)", fix))
    context = value_at(config, "inference.context_tokens")
    positions = context_positions(folder) if (folder / "config.json").is_file() else None
    if positions is not None and isinstance(context, int) and context > positions:
        allowed = f"at most the model's {positions} positions"
        problems.append(Problem("inference.context_tokens", str(context), allowed, "lower it, or take another model"))
    return problems


def check_shared_memory(config: Mapping[str, Any], folder: Path, shared: Path = DIRECTORY) -> list[Problem]:
    """After the model was prepared in `folder`: there is room for the learner's staging buffers, which are made at the
    first version, after minutes of loading and training."""
    dtype, transport = value_at(config, "learner.weights_dtype"), _text(config, "learner.weights_transport")
    buffers = value_at(config, "learner.weights_buffers") if value_at(config, "learner.weights_staging") else 1
    adapters = value_at(config, "learner.lora") is not None  # small, upon weights that are sent once
    if transport not in IN_SHARED_MEMORY or evaluates_only(config) or not isinstance(buffers, int):
        return []
    each = weight_bytes(folder, float_bytes=ITEM_BYTES["float32" if dtype is None else dtype])
    needed, free = each * (1 if adapters else buffers), shutil.disk_usage(shared).free
    if needed <= free:
        return []
    given = f"{buffers} buffers of {each:,} bytes"
    fix = f"make {shared} larger (docker run --shm-size, mount -o remount,size=…), " + (
        "set weights.dtype=bfloat16, or take weights=checkpoint" if dtype is None else "or take weights=checkpoint"
    )
    return [Problem("weights.num_buffers", given, f"what fits into the {free:,} bytes that {shared} has free", fix)]


def _is_missing(path: object) -> bool:
    """What is no path with certainty may be a name on a hub."""
    is_path = isinstance(path, str) and path.startswith(("/", "~", "."))
    return is_path and not (Path(str(path)).expanduser() / "config.json").is_file()


def check_devices(config: Mapping[str, Any], processes: tuple[ProcessPlan, ...]) -> list[Problem]:
    """A learner on a GPU: its process is given one (it sees no other), and torch finds one."""
    device = _text(config, "learner.device")
    learner = next((process for process in processes if process.role == "learner"), None)
    if learner is None or not device.startswith("cuda"):
        return []
    if value_at(config, "launch._target_") == LOCAL_LAUNCHER and not learner.devices:
        allowed = "cpu, as topology gives the learner's process no device"
        fix = f"use learner.device=cpu, or topology.nodes.{learner.node}.actors.learner.devices=1"
        return [Problem("learner.device", repr(device), allowed, f"{fix} and list the node's devices")]
    if not _torch_finds_a_gpu():
        fix = "use learner.device=cpu, or install a torch build for the GPU that there is"
        return [Problem("learner.device", repr(device), "cpu, as torch finds no GPU on this machine", fix)]
    return []


def check_gpu(config: Mapping[str, Any]) -> list[Problem]:
    """Weights that move between GPUs: torch finds one here, and CuPy is there."""
    vllm = [f"{role}.engine" for role in ENGINE_ROLES if _text(config, f"{role}.engine._target_") == VLLM]
    asked = [key for key in (f"{engine}.sleep_while_training" for engine in vllm) if value_at(config, key) is True]
    if asked and not _torch_finds_a_gpu():
        allowed = "false, as torch finds no GPU on this machine"
        return [Problem(key, "True", allowed, "leave it out: it frees memory of a GPU") for key in asked]
    by_ipc = _text(config, "weights.transport") == "ipc"
    key, given = ("weights.transport", "ipc") if by_ipc else ("weights.communicator", "cupy")
    if not by_ipc and _text(config, key) != given:
        return []
    other, fix = ("shm", "use weights=shm") if by_ipc else ("memory", "use weights.communicator=memory")
    if not _torch_finds_a_gpu():
        allowed = f"{other}, as torch finds no GPU on this machine"
        return [Problem(key, repr(given), allowed, f"{fix}, or weights=auto, which takes what fits")]
    if importlib.util.find_spec("cupy") is None:
        allowed = f"{other}, as CuPy is not installed"
        return [Problem(key, repr(given), allowed, f"{fix}, or install headrace[cuda]")]
    return []


def _torch_finds_a_gpu() -> bool:
    import torch  # seconds, where a GPU is asked for

    return torch.cuda.is_available()


def _text(config: Mapping[str, Any], key: str) -> str:
    value = value_at(config, key)
    return value if isinstance(value, str) else ""
