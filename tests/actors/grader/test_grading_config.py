"""Gradings as a config names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]

CONFIG = """
gradings:
  answer: {_target_: headrace.actors.grader.math_grader.MathGrading, extraction: strict}
  format: {_target_: headrace.actors.grader.format_reward.FormatGrading, sections: [think]}
weights: {answer: 1.0, format: 0.0}
_target_: headrace.actors.grader.composite.CompositeGrading
"""


@pytest.mark.parametrize(("override", "reward"), [([], 0.0), (["gradings.answer.extraction=flexible"], 1.0)])
def test_the_extraction_rule_is_an_override_and_visible(
    override: list[str], reward: float, make_session: MakeSession
) -> None:
    """cases A31: verl-project/verl#2150: the rule changes the grade, and the resolved config says which is in force."""
    config: Any = OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.from_dotlist(override))
    grading = instantiate(config)
    assert grading.grade(make_session("The answer is 42.", "42")).reward == reward
    rule = "flexible" if override else "strict"
    assert f"extraction: {rule}" in OmegaConf.to_yaml(config, resolve=True)


def test_an_unknown_rule_fails_before_anything_starts() -> None:
    config = OmegaConf.create({"_target_": "headrace.actors.grader.math_grader.MathGrading", "extraction": "lenient"})
    with pytest.raises(Exception, match="strict, flexible"):
        instantiate(config)


def test_sources_and_corpora_take_config_containers() -> None:
    """cases I118 in kind: Hydra's containers are no dicts and lists."""
    sorting = {"config": {"min_numbers": 2, "max_numbers": 3, "min_value": 0, "max_value": 99, "max_decimals": 0}}
    source_config = {
        "_target_": "headrace.actors.dispatcher.sources.ReasoningGymSource",
        "datasets": {"number_sorting": sorting},
        "held_out_size": 8,
        "prompt": {"_target_": "headrace.actors.tasks.number_sorting.CompactNumberSorting"},
    }
    source = instantiate(OmegaConf.create(source_config))
    assert source.task(0).entry["config"] == sorting["config"]
    corpus_config = {
        "_target_": "headrace.actors.tasks.number_sorting_corpus.NumberSortingCorpus",
        "ascending": {
            "_target_": "headrace.actors.tasks.number_sorting_corpus.Mistakes",
            "kinds": {"swap_two": 1.0},
        },
        "exclude": {
            "_target_": "headrace.actors.dispatcher.sources.HeldOutPrompts",
            "source": source_config,
            "num": 8,
        },
    }
    corpus = instantiate(OmegaConf.create(corpus_config))
    assert next(corpus.documents(0))[0] in "^v"
