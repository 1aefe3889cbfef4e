"""`headrace eval MODEL_OR_RUN [OVERRIDE…]`: one evaluation of fixed weights, by the same actors as in training. Called
by cli.py.

A RUN brings its own configuration: the overrides that it was launched with, but for those that say how it trains and
where. A MODEL is evaluated by what is given. Either way it is a run of its own, with a folder, into which eval.json
goes; there is no learner in it, and `latest` keeps pointing to the newest training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.launch.checks import value_at
from headrace.launch.compose import CONFIG_NAME, Composed, compose_config, key_of
from headrace.launch.job import EXIT_CODES, Outcome
from headrace.launch.overrides import render_override
from headrace.launch.problems import ConfigError
from headrace.launch.resume import compose_again, find_earlier
from headrace.launch.run_folder import read_config, write_json

EVAL_FILE = "eval.json"
OURS = (
    "run.name=eval", "topology=evaluation", "dispatcher=evaluation", "weights=shm", "learner/lora=none",
    "learner.lora=null", "learner.probe=null", "++evaluation.timeout_s=86400", "++evaluation.max_in_flight=256",
    "launch.max_restarts=3", "launch.restart_window_s=86400",
)  # fmt: skip
"""Nothing is sent, and adapters are merged. An evaluation that nobody waits for may take its time, but an engine that
dies of every one must not be started for ever."""
NOT_OF_A_RUN = ("topology", "weights", "launch", "mode", "model", "run", "algorithm", "learner", "dispatcher")
"""Keys and groups of a run's overrides that are about its training, or this machine then."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated. run, step, version: of a checkpoint; None for a model."""

    path: str
    run: str | None = None
    step: int | None = None
    version: int | None = None

    def to_json(self) -> dict[str, object]:
        if self.run is None:
            return {"model": self.path}
        return {"run": self.run, "checkpoint": self.path, "step": self.step, "version": self.version}


def compose_evaluation(
    root: Path,
    target: str,
    overrides: Sequence[str],
    *,
    step: int | None = None,
    version: int | None = None,
    config_dirs: Sequence[Path] = (),
    config_name: str = CONFIG_NAME,
) -> tuple[Composed, Subject]:
    """`target`: a run folder, a model folder or a hub name; `root`: where runs are. Raises ConfigError where it cannot
    work, ValueError where there is no such checkpoint, or step or version are asked of a model."""
    if not (Path(target) / "config.yaml").is_file():
        if step is not None or version is not None:
            raise ValueError(f"{target} is no run folder (it has no config.yaml): --step and --version are for runs")
        given = _ours(("model=path", render_override("model.path", target), *OURS), overrides)
        return compose_config([*given, *overrides], config_dirs=config_dirs, config_name=config_name), Subject(target)
    subject = _of_checkpoint(Path(target).resolve(), step, version)
    try:
        earlier = find_earlier(root, target)
    except ConfigError as error:
        raise ConfigError([replace(problem, key="RUN") for problem in error.problems]) from error
    config = read_config(earlier.folder)
    settings = [f"inference.{key}={value_at(config, f'inference.{key}')}" for key in ("dtype", "context_tokens")]
    weights = ["model=checkpoint", render_override("model.run", str(earlier.folder)), f"model.step={subject.step}"]
    given = _ours((*weights, *settings, *OURS), overrides)
    composed = compose_again(
        earlier,
        [*given, *overrides],
        config_dirs=config_dirs,
        config_name=config_name,
        keeps=lambda key: not _is_of_training(key),
    )
    return composed, subject


def _of_checkpoint(run: Path, step: int | None, version: int | None) -> Subject:
    from headrace.actors.learner.checkpoint import read_info
    from headrace.actors.learner.export import find_checkpoint

    folder = find_checkpoint(run / "checkpoints", step=step, version=version)
    info = read_info(folder)
    exact = info.version if info.version_step == info.step else None
    return Subject(str(folder), str(run), info.step, exact)


def _ours(texts: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Those that the command line does not set itself, nor the group that they are of."""
    given = {key_of(text) for text in overrides}
    return [text for text in texts if given.isdisjoint((key_of(text), key_of(text).partition(".")[0]))]


def _is_of_training(key: str) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in NOT_OF_A_RUN)


def write_evaluation(
    folder: Path, outcome: Outcome, subject: Subject, say: Callable[[str], None]
) -> Mapping[str, Any] | None:
    """Write eval.json into the run's folder, and say what stands in it as a table. Returns its figures, None where
    there are none: the evaluation did not come to its end, or none of its sessions has a reward."""
    from headrace.launch.report.evaluation_table import evaluation_rows, format_rows
    from headrace.launch.report.run_files import RunFiles
    from headrace.launch.report.sections import evaluations

    run = RunFiles(folder)
    entries = evaluations(run)
    figures = entries[-1] if entries else None
    if figures is not None:
        figures = {name: value for name, value in figures.items() if name not in ("version", "step", "time_s")}
    config = run.config
    result = {
        **subject.to_json(),
        "status": outcome.ending,
        "figures": figures,
        "settings": {
            **{name: value for name, value in (config.get("evaluation") or {}).items() if name != "_target_"},
            "max_tokens": value_at(config, "sampling.max_tokens"),
            "seed": config.get("seed"),
        },
        "tasks": config.get("tasks"),
        "data_hash": run.provenance.get("data_hash"),
        "grading": value_at(config, "grader.grading"),
        "environment": value_at(config, "environment.environment"),
        "engine": value_at(config, "evaluator.engine"),
        "trajectories": str(folder / "trajectories"),
    }
    write_json(folder / EVAL_FILE, result)
    if figures is None:
        say(f"no result: the evaluation did not come to its end ({outcome.ending}); see {folder / 'logs'}")
        return None
    sessions, missing = int(figures["sessions"]), int(figures["missing"])
    for line in format_rows(evaluation_rows(figures)):
        say(line)
    say(f"± one standard error, clustered by prompt; {missing} of {sessions} sessions without a reward are not counted")
    say(f"{folder / EVAL_FILE}")
    return figures if {"reward", "greedy"} & figures.keys() else None


def exit_code(outcome: Outcome, figures: Mapping[str, Any] | None) -> int:
    """Of the run, but for one that finished without a result."""
    return EXIT_CODES["failed"] if outcome.ending == "finished" and figures is None else outcome.exit_code
