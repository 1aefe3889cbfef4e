"""Goes on with a run that has ended, in its own folder: `headrace launch resume=RUN [OVERRIDE…]`. Called by cli.py and
run.py.

    RUN/lives/N/    what the launch before left, and this one makes anew: config.yaml, provenance.json, logs/, …
What a run gathers stays where it is and is gone on with by its actors: checkpoints, the journal, trajectories, metrics.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.actors.monitor.metrics_file import last_time_s
from headrace.launch.checks import value_at
from headrace.launch.compose import CONFIG_NAME, Composed, compose_config, key_of
from headrace.launch.numbers import leaves
from headrace.launch.problems import ConfigError, Problem, shorten
from headrace.launch.run_folder import RunFolder, find_run, lock_run_folder, read_config, write_config
from headrace.launch.shared_memory import run_id

RESUME = "resume"
LIVES = "lives"
PROVENANCE = "provenance.json"
MADE_ANEW = (
    "config.yaml", PROVENANCE, "outcome.json", "activity.json", "preflight.json", "report.json", "report.html",
    "logs",
)  # fmt: skip
FIXED = (
    "model", "seed", "tasks", "training.group_size", "training.batch_sessions", "learner.lora", "learner.critic",
    "learner.pretrain", "learner.sft",
)  # fmt: skip
"""What the checkpoint and the journal were made with: their numbers mean something else with other values."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The launch that is gone on from, by what it left."""

    folder: Path
    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    config_name: str
    data_hash: str | None


def split_resume(overrides: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The RUN of resume=RUN, where there is one, and the other overrides. Raises ConfigError for a second one."""
    runs = [text.partition("=")[2] for text in overrides if text.partition("=")[0] == RESUME]
    if len(runs) > 1 or (runs and not runs[0]):
        fix = "give the path of the run's folder, as in resume=runs/latest"
        raise ConfigError([Problem(RESUME, shorten(" ".join(runs)), "one run folder", fix)])
    return (runs[0] if runs else None), tuple(text for text in overrides if text.partition("=")[0] != RESUME)


def find_earlier(root: Path, run: str) -> Earlier:
    """Raises ConfigError where `run` is no folder of a run that came to its start."""
    try:
        folder = find_run(root, run)
        facts = json.loads((_last_started(folder) / PROVENANCE).read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError(f"its {PROVENANCE} is damaged: it does not hold a mapping")
    except (OSError, ValueError) as error:
        fix = "give the path of the run's folder, as in resume=runs/latest"
        raise ConfigError(
            [Problem(RESUME, shorten(run), "a folder of a run that was started", f"{error}; {fix}")]
        ) from (error)
    return Earlier(
        folder,
        overrides=tuple(str(text) for text in facts.get("overrides", ())),
        config_dirs=tuple(Path(str(path)) for path in facts.get("config_dirs", ())),
        config_name=str(facts.get("config_name", CONFIG_NAME)),
        data_hash=facts.get("data_hash"),
    )


def _last_started(folder: Path) -> Path:
    """Where the files of the last launch are that came to its start; a later one may have been killed before."""
    for place in (folder, *reversed(lives(folder))):
        if (place / PROVENANCE).is_file():
            return place
    raise ValueError(f"it has no {PROVENANCE}: its launch did not come to the start; begin a new run")


def lives(folder: Path) -> list[Path]:
    """What earlier launches of the run left, oldest first."""
    found = [path for path in (folder / LIVES).glob("*") if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))


def compose_again(
    earlier: Earlier,
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[Path] = (),
    config_name: str = CONFIG_NAME,
    keeps: Callable[[str], bool] = lambda key: True,
) -> Composed:
    """The configuration of the earlier launch with `overrides` in place of those of its own that set the same key.
    keeps: whether an override of its own with that key is taken over at all."""
    given = {key_of(text) for text in overrides}
    kept = [text for text in earlier.overrides if (key := key_of(text)) not in given and keeps(key)]
    return compose_config(
        [*kept, *overrides],
        config_dirs=[*earlier.config_dirs, *(path for path in config_dirs if path not in earlier.config_dirs)],
        config_name=earlier.config_name if config_name == CONFIG_NAME else config_name,
    )


def reopen_folder(composed: Composed, earlier: Earlier) -> tuple[RunFolder, list[str]]:
    """Take the run's folder, with the new configuration in it; and what is configured otherwise than before, a line
    each. Raises ConfigError where somebody has the run, where what is fixed has changed, or nothing is left to do; then
    the folder is as it was."""
    folder = earlier.folder
    lock = lock_run_folder(folder)
    if lock is None:
        fix = "it is running; wait for its end, or end it (Ctrl-C, or SIGTERM to its launcher)"
        raise ConfigError([Problem(RESUME, repr(str(folder)), "a run that has ended", fix)])
    try:
        before = read_config(_last_started(folder))
        config = composed.resolve(dir=str(folder), id=run_id(), **_kept(before))
        problems = [*_changed_fixed(before, config), *_nothing_left(folder, config)]
        if problems:
            raise ConfigError(problems)
    except BaseException:
        lock.close()
        raise
    life = _put_aside(folder)

    def undo() -> None:
        _put_back(folder, life)
        lock.close()

    try:
        (folder / "logs").mkdir()
        write_config(folder, config)
    except BaseException:
        undo()
        raise
    return RunFolder(folder, config, lock, undo), _changes(composed, before, config)


def _kept(before: Mapping[str, Any]) -> dict[str, str]:
    """Where the run is, is settled."""
    run = before.get("run") or {}
    return {key: str(run[key]) for key in ("root", "name") if key in run}


def _changed_fixed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Problem]:
    problems = []
    for key in FIXED:
        was, is_now = value_at(before, key), value_at(now, key)
        if was == is_now:
            continue
        where = next((path for path, *_ in _differences({key: was}, {key: is_now})), key)
        fix = "leave it as it was, or begin a new run (from these weights: headrace export, then model=existing)"
        given = value_at(now, where) if isinstance(is_now, Mapping) else is_now
        problems.append(Problem(where, shorten(given), f"{shorten(value_at(before, where))}, as the run began", fix))
    return problems


def _nothing_left(folder: Path, config: Mapping[str, Any]) -> list[Problem]:
    from headrace.actors.learner.checkpoint import list_checkpoints, read_info

    max_steps = value_at(config, "training.max_steps")
    found = list_checkpoints(folder / "checkpoints")
    if not found or not isinstance(max_steps, int) or _outcome(folder).get("ending") != "finished":
        return []
    step = read_info(found[-1]).step
    if step < max_steps:
        return []
    fix = f"the run is finished, at step {step}; give more, as in training.max_steps={2 * step}"
    return [Problem("training.max_steps", shorten(max_steps), f"an integer > {step}", fix)]


def check_same_data(earlier: Earlier, data_hash: str | None) -> None:
    """Raises ConfigError where the tasks are others than those with which the run began."""
    if None not in (earlier.data_hash, data_hash) and data_hash != earlier.data_hash:
        fix = "put the data back as they were, or begin a new run"
        allowed = f"tasks of the fingerprint {shorten(earlier.data_hash)}, with which the run began"
        raise ConfigError([Problem("tasks", f"tasks of the fingerprint {shorten(data_hash)}", allowed, fix)])


def seconds_before(folder: Path) -> float:
    """What the launches before this one took. One that was killed did not say: then by the newest metrics."""
    said = (float(_outcome(life).get("wall_s") or 0.0) for life in lives(folder))
    return max(last_time_s(folder / "metrics.jsonl"), *said, 0.0)


def _outcome(folder: Path) -> dict[str, Any]:
    try:
        loaded = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # it was killed
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _put_aside(folder: Path) -> Path:
    """The provenance goes first and comes back last: with it in the folder, the model that the preflight prepared is
    whole."""
    found = lives(folder)
    life = folder / LIVES / str(int(found[-1].name) + 1 if found else 1)
    life.mkdir(parents=True)
    for name in sorted(MADE_ANEW, key=lambda name: name != PROVENANCE):
        if (folder / name).exists():
            (folder / name).rename(life / name)
    return life


def _put_back(folder: Path, life: Path) -> None:
    for name in sorted(MADE_ANEW, key=lambda name: name == PROVENANCE):
        new = folder / name
        if new.is_dir():
            shutil.rmtree(new)
        else:
            new.unlink(missing_ok=True)
        if (life / name).exists():
            (life / name).rename(new)
    life.rmdir()
    if not lives(folder):
        (folder / LIVES).rmdir()


def _changes(composed: Composed, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """By the keys that a user sets."""
    ids = (value_at(before, "run.id"), value_at(now, "run.id"))
    found = [
        difference
        for difference in _differences(before, now)
        if difference[1:] != ids and difference[0] != "weights.auto_reason"
    ]
    origins = composed.origins([key for key, _, _ in found])
    lines = (f"{key}: {shorten(was)} → {shorten(is_)}" for key, (_, was, is_) in zip(origins, found, strict=True))
    return list(dict.fromkeys(lines))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    was, is_now = dict(leaves(before)), dict(leaves(now))
    return [
        (key, was.get(key), is_now.get(key))
        for key in {**was, **is_now}
        if key not in was or key not in is_now or was[key] != is_now[key]
    ]
