"""Each recipe of configs/algorithm composes to the published form, and the learner can be built of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.actors.learner.critic import CriticSettings
from headrace.launch.building import build
from headrace.launch.compose import compose_config

RECIPES: dict[str, dict[str, Any]] = {
    "is_reinforce": {"objective": "IsReinforce", "advantage": "Rloo", "aggregation": "TokenMean"},
    "grpo": {"objective": "ClippedRatio", "advantage": "Grpo", "aggregation": "SequenceMean", "kl": "K3"},
    "dr_grpo": {"objective": "ClippedRatio", "advantage": "GroupMean", "aggregation": "Constant"},
    "dapo": {
        "objective": "ClippedRatio",
        "advantage": "Grpo",
        "aggregation": "TokenMean",
        "penalties": ["overlong"],
        "num_minibatches": 16,
    },
    "gspo": {"objective": "Gspo", "advantage": "Grpo", "aggregation": "SequenceMean", "num_minibatches": 4},
    "cispo": {"objective": "Cispo", "advantage": "Grpo", "aggregation": "TokenMean"},
    "decoupled_ppo": {
        "objective": "DecoupledPpo",
        "advantage": "Batch",
        "aggregation": "TokenMean",
        "num_minibatches": 4,
    },
    "topr": {"objective": "Topr", "advantage": "GroupMean", "aggregation": "Constant"},
    "dppo": {"objective": "Dppo", "advantage": "GroupMean", "aggregation": "TokenMean"},
    "reinforce_pp": {"objective": "ClippedRatio", "advantage": "GroupMean", "aggregation": "TokenMean", "kl": "K1"},
}
"""the classes of the parts; what is not named: one update a batch, no correction, penalty or KL"""

ELSEWHERE = {"ppo"}
"""with a critic, and tests of its own"""


def learner(*overrides: str) -> dict[str, Any]:
    config: dict[str, Any] = compose_config(overrides).resolve(dir="runs/x", id="1.2.3")["learner"]
    return config


def class_of(part: Any) -> str | None:
    return None if part is None else str(part["_target_"].rpartition(".")[2])


def parts(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "objective": class_of(config["objective"]),
        "advantage": class_of(config["advantage"]),
        "aggregation": class_of(config["aggregation"]),
        "corrections": sorted(config["corrections"]),
        "penalties": sorted(config["penalties"]),
        "kl": class_of(config["kl"]),
        "num_minibatches": config["num_minibatches"],
        "num_epochs": config["num_epochs"],
    }


def test_every_recipe_is_here(repository: Path) -> None:
    found = {path.stem for path in (repository / "configs" / "algorithm").glob("*.yaml")}
    assert found - {"none", *ELSEWHERE} == set(RECIPES)


@pytest.mark.parametrize("experiment", ["quickstart", "smoke"])
@pytest.mark.parametrize("name", RECIPES)
def test_it_composes_to_the_published_form(name: str, experiment: str) -> None:
    config = learner(f"experiment={experiment}", f"algorithm={name}")
    alone = {"corrections": [], "penalties": [], "kl": None, "num_minibatches": 1, "num_epochs": 1}
    assert parts(config) == alone | RECIPES[name]
    built, problems = build(config, "learner")
    assert problems == []
    assert type(built).__name__ == "Learner"


def test_the_numbers_of_the_papers() -> None:
    def clips(name: str) -> tuple[float, float]:
        objective = learner(f"algorithm={name}")["objective"]
        return objective["clip_low"], objective["clip_high"]

    assert clips("grpo") == clips("dr_grpo") == clips("decoupled_ppo") == clips("reinforce_pp") == (0.2, 0.2)
    assert clips("dapo") == (0.2, 0.28)
    assert clips("gspo") == (3e-4, 4e-4)
    assert learner("algorithm=grpo")["kl"]["coefficient"] == 0.04
    assert learner("algorithm=reinforce_pp")["kl"]["whiten"] is True
    assert compose_config(["algorithm=dapo"]).resolve(dir="x", id="y")["dispatcher"]["zero_variance"] == "drop"


def test_without_a_recipe_the_experiment_has_its_way() -> None:
    config = parts(learner("experiment=quickstart"))
    assert config["objective"] == "IsReinforce"
    assert config["kl"] == "K2"


def test_a_recipe_comes_after_the_experiment_and_the_command_line_after_both() -> None:
    assert parts(learner("experiment=quickstart", "algorithm=dr_grpo"))["kl"] is None
    config = learner(
        "algorithm=gspo",
        "experiment=quickstart",
        "learner/kl=k2",
        "learner/corrections=tis",
        "learner/advantage=rloo",
        "learner.num_minibatches=2",
        "learner.objective.clip_high=0.01",
    )
    assert parts(config) == {
        "objective": "Gspo",
        "advantage": "Rloo",
        "aggregation": "SequenceMean",
        "corrections": ["tis"],
        "penalties": [],
        "kl": "K2",
        "num_minibatches": 2,
        "num_epochs": 1,
    }
    assert config["objective"]["clip_high"] == 0.01


@pytest.mark.parametrize("name", ["is_reinforce", "cispo", "decoupled_ppo", "topr", "dppo"])
def test_a_weight_is_refused_before_what_holds_one(name: str) -> None:
    _, problems = build(learner(f"algorithm={name}", "learner/corrections=tis"), "learner")
    assert [problem.key for problem in problems] == ["learner.corrections"]
    assert "masks" in problems[0].allowed


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "gspo", "reinforce_pp"])
def test_a_weight_may_stand_before_what_is_built_on_rho(name: str) -> None:
    assert build(learner(f"algorithm={name}", "learner/corrections=tis"), "learner")[1] == []


def test_cispo_on_rho_takes_a_weight() -> None:
    overrides = ("algorithm=cispo", "learner.objective.ratio=rho", "learner/corrections=tis")
    assert build(learner(*overrides), "learner")[1] == []


def test_ppo_has_a_critic_in_place_of_an_advantage_rule_and_groups_of_one() -> None:
    config = compose_config(["algorithm=ppo"]).resolve(dir="runs/x", id="1.2.3")
    alone = {"aggregation": "TokenMean", "corrections": [], "penalties": [], "kl": None, "num_epochs": 1}
    assert parts(config["learner"]) == alone | {
        "objective": "ClippedRatio",
        "advantage": None,
        "num_minibatches": 4,
    }
    critic = config["learner"]["critic"]
    assert (critic["estimator"], critic["gamma"], critic["gae_lambda"], critic["value_clip"]) == ("gae", 1, 1, 0.2)
    assert config["dispatcher"]["group_size"] == 1
    assert config["dispatcher"]["zero_variance"] == "keep"
    assert build(config["learner"], "learner")[1] == []
    assert build(config["dispatcher"], "dispatcher")[1] == []
    stale = learner("algorithm=ppo", "learner.critic.estimator=vtrace", "learner/corrections=tis")
    assert build(stale, "learner")[1] == []


def test_an_advantage_rule_beside_a_critic_is_refused() -> None:
    config = learner("learner/critic=default")
    assert config["advantage"] is None
    config["advantage"] = {"_target_": "headrace.actors.learner.advantages.Rloo"}
    _, problems = build(config, "learner")
    assert [problem.key for problem in problems] == ["learner.advantage"]
    assert "learner/critic=none" in problems[0].fix


def test_the_file_and_the_class_have_the_same_defaults() -> None:
    config = learner("learner/critic=default")["critic"]
    written = {name: value for name, value in config.items() if name != "_target_"}
    assert written == vars(CriticSettings())
