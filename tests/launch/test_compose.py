"""Composition: plain containers, mode=sync in the open, and every unknown key at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.compose import compose_config, sweep
from headrace.launch.problems import ConfigError, Problem

EXPERIMENTS = ("quickstart", "smollm2", "smoke")


def resolved(*overrides: str, **options: Any) -> dict[str, Any]:
    return compose_config(overrides, **options).resolve(dir="runs/x", id="1.2.3")


def only_plain(value: object) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(type(k) is str and only_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return type(value) is list and all(only_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_resolve_to_plain_containers(experiment: str) -> None:
    """cases I118: NVIDIA/physicsnemo#133."""
    config = resolved(f"experiment={experiment}")
    assert only_plain(config)
    assert config["run"]["name"] == experiment
    assert config["dispatcher"]["ledger_path"] == "runs/x/ledger.sqlite"


def test_every_group_choice_composes(repository: Path) -> None:
    for folder in (
        "topology",
        "model",
        "tasks",
        "environment",
        "grader",
        "launch",
        "generator/engine",
        "evaluator/engine",
    ):
        for choice in sorted((repository / "configs" / folder).glob("*.yaml")):
            if choice.stem != "default":
                compose_config([f"{folder}={choice.stem}"])


def test_sync_is_composition_and_the_command_line_comes_last() -> None:
    config = resolved("experiment=smoke", "mode=sync")
    assert config["staleness"]["max_lag_versions"] == 0
    assert config["staleness"]["hard_lag_versions"] == 0
    assert config["weights"]["every_steps"] == 1
    assert config["dispatcher"]["mode"] == config["learner"]["mode"] == "sync"
    assert resolved("mode=sync", "weights.every_steps=3")["weights"]["every_steps"] == 3


def test_no_evaluation_is_none_whatever_the_experiment_says() -> None:
    assert resolved("experiment=smoke")["evaluation"]["num_prompts"] > 0
    assert resolved("experiment=smoke", "evaluation=off")["dispatcher"]["evaluation"]["enabled"] is False


def test_engines_are_chosen_apart() -> None:
    config = resolved("experiment=quickstart", "generator/engine=torch", "evaluator/engine=vllm")
    assert config["generator"]["engine"]["_target_"].endswith("TorchEngine")
    assert config["evaluator"]["engine"]["_target_"].endswith("VllmEngine")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["learner.lrr=1"], {"learner.lrr": "did you mean 'lr'?"}),
        (["trainin.max_steps=1", "sed=3"], {"trainin.max_steps": "'training'", "sed": "'seed'"}),
        (["experimnt=smoke", "learner.lrr=1"], {"experimnt": "'experiment'", "learner.lrr": "'lr'"}),
        (["lr=1e-3"], {"lr": "did you mean learner.lr=… or learner.pretrain.lr=…?"}),
        (["batch_size=32"], {"batch_size": "--cfg job prints all of them"}),
        (["experiment=smoky"], {"experiment": "did you mean 'smoke'?"}),
        (["generator/engin=vllm"], {"generator/engin": "'generator/engine'"}),
        (
            ["topology.nodes.local.actors.generater.count=2"],
            {"topology.nodes.local.actors.generater.count": "'generator'"},
        ),
        (["a b="], {"a b=": "key=value"}),
        (["staleness=null", "evaluation=5"], {"staleness": "staleness=default", "evaluation": "evaluation.NAME"}),
        (["learner/pretrain=5"], {"learner/pretrain": "learner.pretrain.NAME"}),
        (["topology.nodes.local.actors=[1]"], {"topology.nodes.local.actors": "merge"}),
    ],
)
def test_unknown_keys(overrides: list[str], expected: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config(overrides)
    assert {problem.key for problem in caught.value.problems} == set(expected)
    for problem in caught.value.problems:
        assert expected[problem.key] in problem.fix


def test_a_value_in_the_place_of_a_mapping_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        resolved("sampling=3")
    assert [problem.key for problem in caught.value.problems] == ["sampling"]


@pytest.mark.parametrize(
    ("key", "origin"),
    [
        ("learner.weights_dtype", "weights.dtype"),
        ("dispatcher.tasks.held_out_size", "tasks.held_out_size"),
        ("learner.probe.prompts.source.datasets.number_sorting.weight", "tasks.datasets.number_sorting.weight"),
        ("learner.lr", "learner.lr"),
        ("learner.model_path", "learner.model_path"),
        ("topology.nodes.*.actors", "topology.nodes.*.actors"),
        ("learner.no_such.key", "learner.no_such.key"),
    ],
)
def test_problems_name_the_key_that_a_user_sets(key: str, origin: str) -> None:
    problems = [Problem(key, "a", "b", "c"), Problem(origin, "a", "b", "c")]
    assert compose_config([]).at_origins(problems) == [Problem(origin, "a", "b", "c")]


def test_missing_values_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        resolved("model=path", "tasks=json_lines")
    assert {problem.key for problem in caught.value.problems} == {"model.path", "tasks.path"}


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nrun: {name: mine}\n+extra: 1\n".replace("+", "")
    )
    assert resolved("experiment=mine", config_dirs=[tmp_path])["run"]["name"] == "mine"
    with pytest.raises(ConfigError, match="folder that exists"):
        compose_config([], config_dirs=[tmp_path / "none"])


def test_sweep() -> None:
    assert sweep(["a=1,2", "b='x,y'", "c=u,v"]) == [
        ("a=1", "b='x,y'", "c=u"),
        ("a=1", "b='x,y'", "c=v"),
        ("a=2", "b='x,y'", "c=u"),
        ("a=2", "b='x,y'", "c=v"),
    ]
