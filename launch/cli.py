"""The command `headrace`. Parses arguments, calls one function a command, turns errors into exit codes; no other logic.

    headrace launch [resume=RUN] [OVERRIDE…] [--config-dir DIR] [--cfg job] [--resolve] [--multirun] [--quiet]
    headrace report [RUN] [--json]
    headrace export RUN DIR [--version V] [--adapters]
    headrace scale [RUN] [ROLE=COUNT] [--node NAME]
    headrace eval MODEL_OR_RUN [OVERRIDE…] [--step N | --version V] [--config-dir DIR] [--quiet]
    headrace replay RUN --step N [--json FILE] [--tolerance T]

Exit codes: 0 finished, 1 failed, 2 the configuration or a command line that cannot work, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.launch.console import Console
from headrace.launch.job import EXIT_BAD_CONFIG, EXIT_CODES, Outcome
from headrace.launch.problems import ConfigError
from headrace.launch.run_folder import find_run, write_json
from headrace.launch.scaling import CannotScale, parse_wish
from headrace.transport.errors import TransportError

if TYPE_CHECKING:
    from headrace.launch.compose import Composed
    from headrace.launch.resume import Earlier

RUNS = Path("runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Console entry point; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = _parser().parse_known_args(given)
    taken = getattr(options, "overrides", getattr(options, "given", None))
    unknown = [text for text in rest if text.startswith("-") or taken is None]
    if unknown:
        what = "option" if unknown[0].startswith("-") else "argument"
        print(f"headrace: unknown {what} {unknown[0]!r}; see headrace {options.command or ''} --help", file=sys.stderr)
        return EXIT_BAD_CONFIG
    if taken is not None:
        taken += rest  # argparse leaves what stands behind an option
    command: Callable[[argparse.Namespace], int] = options.run
    try:
        return command(options)
    except KeyboardInterrupt:
        return EXIT_CODES["interrupted"]
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
    except CannotScale as error:
        print(f"headrace: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # who read the output has enough of it
        sys.stdout = None  # or the interpreter complains about it at its end
        return EXIT_CODES["failed"]
    except OSError as error:
        print(f"headrace: {_in_words(error)}", file=sys.stderr)
        return EXIT_CODES["failed"]
    except (ValueError, TransportError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return EXIT_CODES["failed"]


def _in_words(error: OSError) -> str:
    """What the system said, with the file; an error of our own says everything itself."""
    if error.strerror is None or error.filename is None:
        return str(error)
    advice = "; make room there, or set run.root to a folder with more" if error.errno == errno.ENOSPC else ""
    return f"{error.strerror}: {error.filename}{advice}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description="Asynchronous reinforcement learning for language-model agents."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    launch = commands.add_parser("launch", help="compose a configuration and run it")
    launch.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="experiment=smollm2 learner.lr=1e-4 …")
    launch.add_argument(
        "--config-dir", action="append", type=Path, default=[], help="a folder with config groups of your own"
    )
    launch.add_argument("--config-name", default="launch", help="the root configuration (default: launch)")
    launch.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    launch.add_argument("--resolve", action="store_true", help="with --cfg: replace interpolations")
    launch.add_argument("--multirun", "-m", action="store_true", help="run each combination of comma-separated values")
    launch.add_argument("--quiet", "-q", action="store_true", help="print nothing but errors")
    launch.set_defaults(run=_launch)
    report = commands.add_parser("report", help="print the report of a run")
    report.add_argument("folder", nargs="?", metavar="RUN", help=f"a run folder (default: {RUNS}/latest)")
    report.add_argument("--json", action="store_true", help="print report.json")
    report.set_defaults(run=_report)
    export = commands.add_parser("export", help="write a Hugging Face folder of a run's weights")
    export.add_argument("folder", metavar="RUN", help="a run folder")
    export.add_argument("target", metavar="DIR", type=Path, help="where to write; must not exist")
    export.add_argument("--version", type=int, help="the version of the weights (default: the last saved)")
    export.add_argument(
        "--adapters", action="store_true", help="of a LoRA run: the adapters alone, not merged into their base"
    )
    export.set_defaults(run=_export)
    scale = commands.add_parser("scale", help="change the number of a role's actors in a running run")
    scale.add_argument(
        "given",
        nargs="*",
        metavar="RUN, ROLE=COUNT",
        help=f"a run folder (default: {RUNS}/latest), and what to have: generator=2; without it, the counts are shown",
    )
    scale.add_argument("--node", help="the node where actors join or leave (default: where the role is)")
    scale.set_defaults(run=_scale)
    evaluate = commands.add_parser("eval", help="evaluate a model, or a checkpoint of a run")
    evaluate.add_argument("target", metavar="MODEL_OR_RUN", help="a run folder, a model folder or a hub name")
    evaluate.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="evaluation.samples=16 evaluator/engine=vllm …"
    )
    which = evaluate.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="of a run: the checkpoint of that step (default: the newest)")
    which.add_argument("--version", type=int, help="of a run: the checkpoint that holds that version")
    evaluate.add_argument(
        "--config-dir", action="append", type=Path, default=[], help="a folder with config groups of your own"
    )
    evaluate.add_argument("--config-name", default="launch", help="the root configuration (default: launch)")
    evaluate.add_argument("--quiet", "-q", action="store_true", help="print the result and errors only")
    evaluate.set_defaults(run=_evaluate)
    replay = commands.add_parser("replay", help="compute a recorded step again, offline, and compare")
    replay.add_argument("folder", metavar="RUN", help="a run folder")
    replay.add_argument("--step", type=int, required=True, help="the optimizer step, from 1 on")
    replay.add_argument("--json", type=Path, metavar="FILE", help="write what came of it")
    replay.add_argument(
        "--tolerance", type=float, default=1e-4, help="relative difference that is still the same step (1e-4)"
    )
    replay.set_defaults(run=_replay)
    return parser


def _launch(options: argparse.Namespace) -> int:
    from headrace.launch.compose import sweep  # Hydra stays out of the other commands
    from headrace.launch.run import run_job

    jobs = sweep(options.overrides) if options.multirun else [tuple(options.overrides)]
    composed = [_compose(job, options) for job in jobs]
    if options.cfg:
        print("\n---\n".join(job.as_yaml(resolve=options.resolve).rstrip() for job, _ in composed))
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    worst = 0
    for job, earlier in composed:
        console = Console(quiet=options.quiet)
        outcome = asyncio.run(run_job(job, console, ["headrace", *sys.argv[1:]], earlier=earlier))
        if outcome.ending == "failed":
            console.error(f"headrace: the run failed: {outcome.reason}")
        worst = max(worst, outcome.exit_code)
        if outcome.ending in ("interrupted", "terminated"):
            break
    return worst


def _compose(overrides: Sequence[str], options: argparse.Namespace) -> tuple[Composed, Earlier | None]:
    from headrace.launch.compose import compose_config
    from headrace.launch.resume import compose_again, find_earlier, split_resume

    run, rest = split_resume(overrides)
    given: dict[str, Any] = {"config_dirs": options.config_dir, "config_name": options.config_name}
    if run is None:
        return compose_config(rest, **given), None
    earlier = find_earlier(RUNS, run)
    return compose_again(earlier, rest, **given), earlier


def _report(options: argparse.Namespace) -> int:
    from headrace.launch.report import build_report, format_report  # matplotlib stays out of the other commands

    report = build_report(find_run(RUNS, options.folder))
    print(json.dumps(report, indent=2) if options.json else format_report(report))
    return 0


def _export(options: argparse.Namespace) -> int:
    from headrace.launch.export import export_run

    folder = find_run(RUNS, options.folder)
    source = export_run(folder, options.target, version=options.version, merge=not options.adapters)
    print(f"wrote {options.target} from {source}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from headrace.launch.evaluate import compose_evaluation, exit_code, write_evaluation
    from headrace.launch.run import run_job

    composed, subject = compose_evaluation(
        RUNS,
        options.target,
        options.overrides,
        step=options.step,
        version=options.version,
        config_dirs=options.config_dir,
        config_name=options.config_name,
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    console = Console(quiet=options.quiet)
    codes = []

    def at_end(folder: Path, outcome: Outcome) -> None:
        codes.append(exit_code(outcome, write_evaluation(folder, outcome, subject, print)))

    outcome = asyncio.run(run_job(composed, console, ["headrace", *sys.argv[1:]], is_latest=False, at_end=at_end))
    if outcome.ending == "failed":
        console.error(f"headrace: the evaluation failed: {outcome.reason}")
    return codes[0]


def _replay(options: argparse.Namespace) -> int:
    from headrace.launch.replay import replay_step  # the learner and torch stay out of the other commands

    logging.basicConfig(level=logging.WARNING, format="%(levelname).1s %(name)s: %(message)s", stream=sys.stderr)
    folder = find_run(RUNS, options.folder)
    result = replay_step(folder, options.step, tolerance=options.tolerance, say=lambda text: print(text, flush=True))
    if options.json is not None:
        write_json(options.json, result)
    return 0 if result["within_tolerance"] else EXIT_CODES["failed"]


def _scale(options: argparse.Namespace) -> int:
    from headrace.launch.control_client import scale  # sockets stay out of the other commands

    wishes = [text for text in options.given if "=" in text and not Path(text).is_dir()]
    runs = [text for text in options.given if text not in wishes]
    if len(wishes) > 1 or len(runs) > 1:
        raise CannotScale(f"got {' '.join(options.given)}; give one RUN and one ROLE=COUNT at most")
    if options.node is not None and not wishes:
        raise CannotScale("--node needs a ROLE=COUNT beside it, as in generator=2 --node NAME")
    wish = parse_wish(wishes[0], options.node) if wishes else None
    scale(find_run(RUNS, runs[0] if runs else None), wish, lambda text: print(text, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
