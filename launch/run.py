"""One run from a composed configuration to its report: folder, preflight, provenance, launcher, report. Called by
cli.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.launch.building import build
from headrace.launch.checks import value_at
from headrace.launch.child import Child
from headrace.launch.compose import Composed
from headrace.launch.console import Console
from headrace.launch.ending_signals import on_ending_signals
from headrace.launch.environ import launcher_environment
from headrace.launch.job import EXIT_CODES, Job, Launcher, Outcome
from headrace.launch.logs import LogTail, last_lines
from headrace.launch.preflight_result import BUILDING, RESULT
from headrace.launch.problems import ConfigError, Problem, listing, shorten
from headrace.launch.provenance import provenance
from headrace.launch.resume import PROVENANCE, Earlier, check_same_data, reopen_folder, seconds_before
from headrace.launch.run_folder import (
    RUN_NAME,
    RunFolder,
    create_run_folder,
    is_run_name,
    lock_run_folder,
    point_latest,
    remove_run_folder,
    write_config,
    write_json,
)
from headrace.launch.schema import check_targets
from headrace.launch.shared_memory import remove_leftovers, run_id
from headrace.launch.topology import plan_topology, roles_of

POLL_S = 0.1
RUN_KEYS = ("name", "root")


def prepare_folder(composed: Composed, now: datetime) -> RunFolder:
    """Make the run folder and resolve the configuration against it. Raises ConfigError; then no folder is left."""
    draft = composed.resolve(dir="?", id="?")
    run = draft.get("run") or {}
    root, name = run.get("root", "runs"), run.get("name", "run")
    given = composed.config.get("run") or {}
    unknown = [str(key) for key in given if key not in RUN_KEYS]
    if unknown:
        fix = "the launcher chooses the others; remove it"
        raise ConfigError([Problem(f"run.{key}", shorten(given[key]), listing(RUN_KEYS), fix) for key in unknown])
    if not isinstance(root, str) or not root:
        raise ConfigError([Problem("run.root", repr(root), "the path of a folder", "for example run.root=runs")])
    if not isinstance(name, str) or not is_run_name(name):
        fix = "choose another; it becomes part of a folder's name"
        raise ConfigError([Problem("run.name", repr(name), RUN_NAME, fix)])
    try:
        folder = create_run_folder(Path(root), name, now)
    except OSError as error:
        fix = f"the run's folder cannot be made there: {error.strerror or error}"
        raise ConfigError([Problem("run.root", repr(root), "a folder that this user may write", fix)]) from error
    lock = lock_run_folder(folder)
    assert lock is not None, "nobody else knows a folder that was made just now"
    config = composed.resolve(dir=str(folder), id=run_id())
    write_config(folder, config)
    return RunFolder(folder, config, lock, lambda: remove_run_folder(folder))


async def run_job(
    composed: Composed,
    console: Console,
    argv: Sequence[str],
    *,
    earlier: Earlier | None = None,
    is_latest: bool = True,
    at_end: Callable[[Path, Outcome], None] = lambda folder, outcome: None,
) -> Outcome:
    """Run one job, in a new folder or in that of the run that it resumes. Raises ConfigError where the configuration
    cannot work; then no new folder is left, and an old one as it was. is_latest: `latest` points to it. at_end: called
    with the run's folder after its report."""
    for name in remove_leftovers():
        console.say(f"removed {name}: left in shared memory by a run that was killed")
    changes: list[str] = []
    if earlier is None:
        prepared = prepare_folder(composed, datetime.now())
    else:
        prepared, changes = reopen_folder(composed, earlier)
    folder, config = prepared.path, prepared.config
    with prepared.lock:
        try:
            launcher = make_launcher(config)
            found = await preflight(folder, console)
            if earlier is not None:
                check_same_data(earlier, found["data_hash"])
        except ConfigError as error:
            prepared.abandon()
            raise ConfigError(composed.at_origins(error.problems)) from error
        except BaseException:
            prepared.abandon()
            raise
        console.keep(folder / "logs" / "console.log")
        console.say(f"run folder {folder}")
        for change in changes:
            console.say(f"changed since the launch before: {change}")
        if is_latest:
            point_latest(folder.parent.parent, folder)
        outcome = await _run(composed, launcher, prepared, found["data_hash"], console, argv)
        at_end(folder, outcome)
        return outcome


async def _run(
    composed: Composed,
    launcher: Launcher,
    prepared: RunFolder,
    data_hash: str | None,
    console: Console,
    argv: Sequence[str],
) -> Outcome:
    folder, config = prepared.path, prepared.config
    if reason := value_at(config, "weights.auto_reason"):
        console.say(f"weights travel by {value_at(config, 'weights.transport')}, chosen by weights=auto: {reason}")
    processes, _ = plan_topology(config["topology"], roles_of(config))
    if value_at(config, "weights.transport") == "stream" and not any(plan.role == "relay" for plan in processes):
        console.say("weights=stream, but all engines share the learner's node: they read its memory, as with shm")
    facts = provenance(
        seed=int(config.get("seed", 0)),
        overrides=composed.overrides,
        config_dirs=composed.config_dirs,
        config_name=composed.config_name,
        data_hash=data_hash,
        argv=argv,
    )
    write_json(folder / PROVENANCE, facts)
    before_s, started_s = seconds_before(folder), time.monotonic()
    outcome = await launcher.launch(Job(folder, str(config["run"]["id"]), config, processes, console))
    write_json(
        folder / "outcome.json",
        {
            "ending": outcome.ending,
            "reason": outcome.reason,
            "wall_s": before_s + time.monotonic() - started_s,
            "restarts": dict(outcome.restarts),
        },
    )
    await asyncio.to_thread(report, folder, console)
    return outcome


def report(folder: Path, console: Console) -> None:
    """Write `report.json` and `report.html`. An error here is told but does not change how the run ended."""
    console.say("writing the report")
    try:
        from headrace.launch.report import write_report  # it draws pictures: nothing before the end needs that

        write_report(folder)
    except Exception:  # whatever is missing in a run that was cut short must not hide why it was
        console.error(f"headrace: the report could not be written:\n{traceback.format_exc()}")
        return
    console.say(f"the report is {folder / 'report.html'}; headrace report {folder} prints it")


def make_launcher(config: dict[str, Any]) -> Launcher:
    """The launcher that the config group `launch` names. Raises ConfigError."""
    problems = check_targets(config["launch"], "launch")
    launcher = None
    if not problems:
        launcher, problems = build(config["launch"], "launch")
    if launcher is None:
        raise ConfigError(problems)
    made: Launcher = launcher
    return made


async def preflight(folder: Path, console: Console) -> dict[str, Any]:
    """Check the configuration and prepare the model in a child process. Raises ConfigError, ChildProcessError where
    the child ends without a word; KeyboardInterrupt or, for another signal, SystemExit where it is stopped."""
    log = folder / "logs" / "preflight.log"
    tail = LogTail("preflight", log, console.line)
    child = Child(
        [sys.executable, "-m", "headrace.launch.preflight", str(folder), str(os.getpid())],
        environment={**launcher_environment(), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"},
        log=log,
    )
    console.say("preflight: checking the configuration and preparing the model")
    stopped_by: list[signal.Signals] = []
    try:
        with on_ending_signals(stopped_by.append):
            while not child.ended.done() and not stopped_by:
                await asyncio.wait([child.ended], timeout=POLL_S)
                tail.poll()
    finally:
        child.kill()
        tail.drain()
    if stopped_by:
        raise KeyboardInterrupt if stopped_by[0] is signal.SIGINT else SystemExit(EXIT_CODES["terminated"])
    result, code = folder / RESULT, child.ended.result()
    found: dict[str, Any] = json.loads(result.read_text()) if result.is_file() else {}
    if BUILDING in found:  # it ended there
        fix = f"it ended its process with code {code}; its last lines:\n{last_lines(log)}"
        raise ConfigError([Problem(found[BUILDING], found["given"], "a constructor that returns", fix)])
    if code != 0 or not found:
        raise ChildProcessError(f"the preflight process ended with code {code}; its last lines:\n{last_lines(log)}")
    if found["problems"]:
        raise ConfigError([Problem(**problem) for problem in found["problems"]])
    return found
