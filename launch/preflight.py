"""Everything that can be known to fail before an actor process starts. Runs in a child process of the launcher.

The child imports the classes that the configuration names, compares constructors with arguments, builds each actor
once (constructors are cheap and check values), prepares the model folder, and asks for a task. The launcher itself
stays free of their imports.

    python -m headrace.launch.preflight RUN_FOLDER PARENT_PID        → RUN_FOLDER/preflight.json
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.actors.grader.grading import why_unscorable
from headrace.actors.session import Task
from headrace.launch.building import build
from headrace.launch.checks import check_values, evaluates_only, value_at
from headrace.launch.numbers import check_numbers
from headrace.launch.parent_death import die_with_parent
from headrace.launch.placement_checks import check_counts, check_one_gpu, check_ranks, check_relays
from headrace.launch.preflight_result import BUILDING, RESULT
from headrace.launch.problems import Problem, shorten
from headrace.launch.run_folder import read_config, write_json
from headrace.launch.schema import check_targets, find_target
from headrace.launch.surroundings import (
    check_devices,
    check_folders,
    check_gpu,
    check_journal,
    check_models,
    check_shared_memory,
)
from headrace.launch.topology import count_actors, plan_topology, roles_of
from headrace.transport import Actor

log = logging.getLogger("headrace.preflight")

NUM_TASKS_TRIED = 8


def check_config(
    config: Mapping[str, Any], building: Callable[[str, str], None] = lambda key, target: None
) -> list[Problem]:
    """Every problem that can be found without preparing the model. Imports the classes that the configuration names;
    `building` is told of each before it is made."""
    processes, problems = plan_topology(config.get("topology") or {}, roles_of(config))
    placed_well = [check_counts, check_relays, check_one_gpu, check_ranks]
    counts = [] if problems else [found for check in placed_well for found in check(processes, config)]
    found = [*problems, *check_numbers(config), *check_values(config), *counts, *check_targets(config)]
    found += [*check_folders(config), *check_journal(config), *check_devices(config, processes), *check_gpu(config)]
    placed = count_actors(processes)
    broken = {problem.key.partition(".")[0] for problem in found}
    for role in sorted(placed):
        if role not in broken:
            building(role, config[role]["_target_"])
            found += _check_role(config[role], role)
    return _without_echoes(found)


def _check_role(config: Mapping[str, Any], role: str) -> list[Problem]:
    target, _ = find_target(config["_target_"], role)
    if isinstance(target, type) and not issubclass(target, Actor):
        fix = "derive it from headrace.transport.Actor, or take the role out of the topology"
        return [Problem(f"{role}._target_", config["_target_"], "a subclass of headrace.transport.Actor", fix)]
    return build(config, role)[1]


def _without_echoes(problems: list[Problem]) -> list[Problem]:
    """A key has one problem, the first that was found; a node that is interpolated to several places has its problem
    once: the shortest key is the one that a user sets."""
    of_key: dict[str, Problem] = {}
    for problem in problems:
        of_key.setdefault(problem.key, problem)
    unique: dict[tuple[str, str, str, str], Problem] = {}
    for problem in sorted(of_key.values(), key=lambda p: p.key.count(".")):
        unique.setdefault((problem.key.rpartition(".")[2], problem.given, problem.allowed, problem.fix), problem)
    return [problem for problem in of_key.values() if problem in unique.values()]


def prepare_model(config: Mapping[str, Any], folder: Path) -> list[Problem]:
    """Have the `model` write its folder (weights, tokenizer) to `RUN_FOLDER/model`."""
    model = config.get("model")
    if not isinstance(model, Mapping) or "_target_" not in model:
        return []
    preparer, problems = build(model, "model")
    if problems or (folder / "model").exists():  # a run that is resumed has it from its first launch
        return problems
    started_s = time.monotonic()
    try:
        preparer.prepare(folder / "model", int(config.get("seed", 0)))
    except (OSError, ValueError, ImportError) as error:
        log.debug("the model could not be prepared", exc_info=True)
        given = shorten(model.get("path") or model["_target_"])
        return [Problem("model.path" if "path" in model else "model", given, "a model that can be loaded", str(error))]
    log.info("the model folder is ready (%.1f s)", time.monotonic() - started_s)
    return []


def try_tasks(config: Mapping[str, Any]) -> tuple[str | None, list[Problem]]:
    """The hash of what determines the tasks, where their source has one, after it gave what the run will ask first: a
    file that is not there or a data set of no known name is found here."""
    tasks = config.get("tasks")
    if not isinstance(tasks, Mapping) or "_target_" not in tasks:
        return None, []
    source, problems = build(tasks, "tasks")
    if problems:
        return None, problems
    try:
        held_out = source.held_out(value_at(config, "evaluation.num_prompts") or 0)
        alone = evaluates_only(config)
        first = held_out[:NUM_TASKS_TRIED] if alone else [source.task(index) for index in range(NUM_TASKS_TRIED)]
        fingerprint = source.fingerprint() if hasattr(source, "fingerprint") else None
    except Exception as error:  # a source is anybody's code; whatever it raises here it would raise in the run
        log.debug("the tasks could not be made", exc_info=True)
        key = "tasks.path" if isinstance(error, OSError) and "path" in tasks else "tasks"
        given = shorten(tasks["path"] if key == "tasks.path" else tasks["_target_"])
        return None, [Problem(key, given, "tasks that can be made", f"{type(error).__name__}: {error}")]
    return fingerprint, _try_grading(config, first)


def _try_grading(config: Mapping[str, Any], tasks: list[Task]) -> list[Problem]:
    """Whether the grader's grading can score any of these tasks: else every session would end without a reward."""
    grading = value_at(config, "grader.grading")
    if not isinstance(grading, Mapping) or "_target_" not in grading:
        return []
    judge, problems = build(grading, "grader.grading")
    if problems:
        return problems
    reasons = [why_unscorable(judge, task) for task in tasks]
    if None in reasons:
        return []
    allowed = "a grading that can score these tasks"
    return [Problem("grader.grading", shorten(grading["_target_"]), allowed, str(reasons[0]))]


def main() -> None:
    folder, parent_pid = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent_pid)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = read_config(folder)
    result = folder / RESULT
    problems = check_config(config, lambda key, target: write_json(result, {BUILDING: key, "given": repr(target)}))
    result.unlink(missing_ok=True)
    problems = problems or prepare_model(config, folder) or check_models(config, folder / "model")
    problems = problems or check_shared_memory(config, folder / "model")
    fingerprint, found = (None, []) if problems else try_tasks(config)
    problems += found
    write_json(result, {"problems": [p.to_json() for p in problems], "data_hash": fingerprint})


if __name__ == "__main__":
    main()
