"""One run: the real launcher, supervisor, parameter server, generator, engine; a learner and a reader of our own."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.launch.console import Console
from headrace.launch.job import Job
from headrace.launch.local import LocalLauncher
from headrace.launch.run_folder import write_config
from headrace.launch.shared_memory import run_id
from headrace.launch.topology import plan_topology, roles_of
from identifying.learner import FIGURES
from identifying.weights import CONTEXT_TOKENS, VOCABULARY, model_of

_FOLDER = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Setting:
    engine: str
    """"torch" or "vllm" """
    updates: int
    kills: int
    tensor_parallel: int = 1
    seed: int = 0


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """The figures of the run in `folder`, which must not exist. Raises RuntimeError where it came to no good end."""
    (folder / "logs").mkdir(parents=True)
    model_of(0).save_pretrained(folder / "model")
    name = run_id()
    config = _config(setting, folder, name)
    write_config(folder, config)
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems, problems
    _importable_by_children()
    console = Console(quiet=True)
    console.keep(folder / "logs" / "console.log")
    launcher = LocalLauncher(restart=["generator"], max_restarts=setting.kills + 10, restart_window_s=3600.0)
    began_s = time.monotonic()
    outcome = asyncio.run(launcher.launch(Job(folder, name, config, processes, console)))
    if outcome.exit_code or not (folder / FIGURES).exists():
        raise RuntimeError(f"{setting}: the run ended as {outcome.ending} ({outcome.reason}); its logs: {folder}/logs")
    figures: dict[str, Any] = json.loads((folder / FIGURES).read_text())
    total_s = round(time.monotonic() - began_s, 1)
    head = {"engine": setting.engine, "tensor_parallel": setting.tensor_parallel, "seed": setting.seed}
    return head | figures | {"restarts": sum(dict(outcome.restarts).values()), "total_s": total_s}


def _config(setting: Setting, folder: Path, name: str) -> dict[str, Any]:
    roles: dict[str, dict[str, Any]] = {
        "parameter_server": {"_target_": "headrace.actors.parameter_server.actor.ParameterServer"},
        "generator": {
            "_target_": "headrace.actors.generator.actor.Generator",
            "engine": _engine(setting, folder),
            "metrics_period_s": 0,
        },
        "dispatcher": {
            "_target_": "identifying.reader.Reader",
            "vocabulary": VOCABULARY,
            "context_tokens": CONTEXT_TOKENS,
            "seed": setting.seed,
        },
        "learner": {
            "_target_": "identifying.learner.IdentifyingLearner",
            "folder": str(folder),
            "run_id": name,
            "num_updates": setting.updates,
            "num_kills": setting.kills,
            "seed": setting.seed,
        },
    }
    actors = {role: {"count": 1, "threads": 1} for role in roles}
    return {"topology": {"nodes": {"n": {"actors": actors}}}, **roles}


def _engine(setting: Setting, folder: Path) -> dict[str, Any]:
    shared = {"model_path": str(folder / "model"), "dtype": "float32", "num_threads": 1}
    if setting.engine == "torch":
        return {"_target_": "headrace.actors.generator.torch_engine.TorchEngine", "max_batch": 24, **shared}
    cores = "|".join(map(str, range(setting.tensor_parallel)))
    binding = {} if setting.tensor_parallel == 1 else {"cpu_threads_bind": cores}
    return {
        "_target_": "headrace.actors.generator.vllm_engine.VllmEngine",
        "max_num_seqs": 24,
        "tensor_parallel_size": setting.tensor_parallel,
        **binding,
        **shared,
    }


def _importable_by_children() -> None:
    paths = [str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
