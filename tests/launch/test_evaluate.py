"""headrace eval: what is composed of a model and of a run's checkpoint, what is written, and the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.launch.cli import main
from headrace.launch.compose import Composed, compose_config
from headrace.launch.evaluate import compose_evaluation, exit_code, write_evaluation
from headrace.launch.job import Outcome
from headrace.launch.placement_checks import check_counts
from headrace.launch.problems import ConfigError
from headrace.launch.run_folder import write_config, write_json
from headrace.launch.topology import count_actors, plan_topology, roles_of

GIVEN = (
    "experiment=smoke", "mode=sync", "model.hidden_size=64", "learner/lora=default", "learner.lr=1e-2", "seed=7",
    "evaluation.num_prompts=12", "topology.nodes.local.actors.generator.count=2", "evaluator/engine=vllm",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a launch left that saved after steps 0, 4 and 6."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "it's one"
    folder.mkdir(parents=True)
    write_config(folder, compose_config(GIVEN).resolve(dir=str(folder), id="one"))
    write_json(folder / "provenance.json", {"overrides": GIVEN, "config_dirs": []})
    for step, version, version_step in ((0, 1, 0), (4, 3, 4), (6, 3, 4)):
        checkpoint = folder / "checkpoints" / f"step-{step:06d}"
        checkpoint.mkdir(parents=True)
        info = {"step": step, "version": version, "version_step": version_step}
        (checkpoint / "checkpoint.json").write_text(json.dumps(info))
    return folder


def resolved(composed: Composed) -> dict[str, Any]:
    return composed.resolve(dir="/run", id="id")


def test_a_run_brings_its_tasks_and_settings_and_not_its_training(run: Path) -> None:
    composed, subject = compose_evaluation(Path("runs"), str(run), ["evaluation.samples=3"])
    config = resolved(composed)
    assert (subject.run, subject.step, subject.version) == (str(run), 6, None)
    assert config["model"] == {
        "_target_": "headrace.launch.models.RunCheckpoint", "run": str(run), "step": 6,
    }  # fmt: skip
    assert config["tasks"]["datasets"]["number_sorting"]["config"]["max_numbers"] == 2
    assert (config["evaluation"]["num_prompts"], config["evaluation"]["samples"]) == (12, 3)
    assert config["inference"] == {"dtype": "float32", "context_tokens": 512}
    assert (config["seed"], config["mode"], config["learner"]["lora"]) == (7, "async", None)
    assert config["evaluator"]["engine"]["lora_rank"] is None, "adapters are merged"
    assert config["run"]["name"] == "eval"
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems
    assert set(count_actors(processes)) == {
        "monitor", "parameter_server", "dispatcher", "grader", "environment", "evaluator",
    }  # fmt: skip
    assert check_counts(processes, config) == []
    assert (config["dispatcher"]["only_evaluates"], config["dispatcher"]["num_evaluators"]) == (True, 1)


@pytest.mark.parametrize(
    ("which", "step", "version"), [({}, 6, None), ({"step": 4}, 4, 3), ({"version": 1}, 0, 1), ({"step": 0}, 0, 1)]
)
def test_any_checkpoint_by_step_or_version(run: Path, which: Any, step: int, version: int | None) -> None:
    composed, subject = compose_evaluation(Path("runs"), str(run), [], **which)
    assert (subject.step, subject.version) == (step, version)
    assert resolved(composed)["model"]["step"] == step


def test_a_model_is_evaluated_by_what_is_given(tmp_path: Path) -> None:
    given = ["tasks=json_lines", "tasks.path=x.jsonl", "grader=math", "topology.nodes.local.actors.evaluator.count=2"]
    config = resolved(compose_evaluation(tmp_path, "owner/name", given)[0])
    assert config["model"]["path"] == "owner/name"
    assert config["inference"]["context_tokens"] == 2048
    assert config["dispatcher"]["num_evaluators"] == 2
    assert config["tasks"]["held_out_size"] == config["evaluation"]["num_prompts"]


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    given = ["launch=inprocess", "run.name=mine", "++evaluation.timeout_s=5", "topology=laptop"]
    config = resolved(compose_evaluation(tmp_path, "m", given)[0])
    assert (config["run"]["name"], config["evaluation"]["timeout_s"]) == ("mine", 5)
    assert "max_restarts" not in config["launch"]
    assert "learner" in config["topology"]["nodes"]["local"]["actors"]


def test_what_cannot_work_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"holds version 9; there are versions \[1, 3\]"):
        compose_evaluation(Path("runs"), str(run), [], version=9)
    with pytest.raises(ValueError, match=r"holds step 5; there are steps \[0, 4, 6\]"):
        compose_evaluation(Path("runs"), str(run), [], step=5)
    with pytest.raises(ValueError, match="--step and --version are for runs"):
        compose_evaluation(Path("runs"), "some/model", [], step=5)
    (run / "provenance.json").unlink()
    with pytest.raises(ConfigError, match="RUN: got"):
        compose_evaluation(Path("runs"), str(run), [])
    assert main(["eval", str(run), "--version", "9"]) == 1
    assert main(["eval", "some/model", "evaluation.sample=1"]) == 2
    assert "did you mean 'samples'?" in capsys.readouterr().err


def test_an_evaluation_needs_its_roles_and_no_learner(tmp_path: Path) -> None:
    composed, _ = compose_evaluation(tmp_path, "m", ["topology.nodes.local.actors.evaluator.count=0"])
    config = resolved(composed)
    processes, _ = plan_topology(config["topology"], roles_of(config))
    assert [problem.key for problem in check_counts(processes, config)] == ["topology.nodes.*.actors.evaluator.count"]


FIGURES = {
    "step": 0.0, "prompts": 4.0, "sessions": 8.0, "missing": 1.0, "off_version": 0.0, "reward": 0.5, "reward_n": 7.0,
    "reward_stderr": 0.25, "pass_at_2": 0.75, "pass_at_2_n": 3.0, "pass_at_2_stderr": 0.125, "wall_s": 3.0,
}  # fmt: skip


def evaluated(run: Path, values: dict[str, float] | None, ending: Any = "finished") -> tuple[Any, int, str]:
    line = {"time_s": 1.0, "stream": "eval", "step_name": "version", "step": 0, "values": values}
    (run / "metrics.jsonl").write_text("" if values is None else json.dumps(line) + "\n")
    outcome, said = Outcome(ending, "done"), []
    _, subject = compose_evaluation(Path("runs"), str(run), [], step=4)
    figures = write_evaluation(run, outcome, subject, said.append)
    return json.loads((run / "eval.json").read_text()), exit_code(outcome, figures), "\n".join(said)


def test_the_result_is_a_file_and_a_table(run: Path) -> None:
    result, code, said = evaluated(run, FIGURES)
    assert code == 0
    assert (result["run"], result["step"], result["version"], result["status"]) == (str(run), 4, 3, "finished")
    assert result["figures"]["pass_at_2_stderr"] == 0.125
    assert "step" not in result["figures"]
    assert (result["settings"]["num_prompts"], result["settings"]["seed"]) == (12, 7)
    assert "all        4  0.500 ± 0.250  0.750 ± 0.125" in said
    assert "1 of 8 sessions without a reward are not counted" in said


def test_without_a_result_it_has_failed(run: Path) -> None:
    nothing = {name: value for name, value in FIGURES.items() if not name.startswith(("reward", "pass"))}
    assert evaluated(run, nothing)[1] == 1
    result, code, said = evaluated(run, None)
    assert (result["figures"], code, "no result" in said) == (None, 1, True)
    assert evaluated(run, None, "interrupted")[1] == 130
