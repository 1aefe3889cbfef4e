"""The library's scorers with their guards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from headrace.actors.grader import gym_scorers


def item(dataset: str, **config: Any) -> dict[str, Any]:
    made: dict[str, Any] = reasoning_gym.create_dataset(dataset, seed=3, size=10, **config)[0]
    return made


@pytest.mark.parametrize(
    ("numbers", "target", "answer", "score"),
    [
        ([1, 81, 1, 1], 81, "81*1", 0.05),
        ([7, 2], 3, "7/2", 0.05),
        ([1, 81, 1, 1], 81, "81*1*1*1", 1.0),
        ([1, 2], 3, "__import__('os').getpid()", 0.01),
        ([1, 2], 3, "9**9**9**9", 0.01),
        ([1, 2], 3, None, 0.01),
    ],
)
def test_countdown(numbers: list[int], target: int, answer: str | None, score: float) -> None:
    """cases A32: open-thought/reasoning-gym#478."""
    problem = {"answer": "", "metadata": {"numbers": numbers, "target": target}}
    assert gym_scorers.scorer("countdown", "{}")(answer, problem) == score


def test_puzzle24_wants_the_given_numbers() -> None:
    """cases A32: the library only counts them."""
    problem = {"answer": "", "metadata": {"numbers": [8, 5, 10, 6]}}
    score = gym_scorers.scorer("puzzle24", "{}")
    assert score("10*(8-5)-6", problem) == 1.0
    assert score("6*4*1*1", problem) == 0.01


@pytest.mark.parametrize(
    ("answer", "score", "exact_score"),
    [
        ("[13,32,77]", 1.0, 1.0),
        ("['13', '32', '77']", 1.0, 1.0),
        ("[13.0, 32, 77]", 1.0, 1.0),
        ("[14,32,77]", 1.0, 0.0),
        ("[77,32,13]", 0.0, 0.0),
        ("[13,32]", 0.0, 0.0),
        ("[NaN,NaN,NaN]", 0.0, 0.0),
        ('["nan","nan","nan"]', 0.0, 0.0),
        ("13,32,77", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_number_sorting(answer: str, score: float, exact_score: float) -> None:
    """The compact answer is the library's; NaN, which is within its tolerance of everything, is not."""
    metadata = {"direction": "ascending", "sorted_numbers": ["13.0", "32.0", "77.0"]}
    problem = {"answer": "['13.0', '32.0', '77.0']", "metadata": metadata}
    assert gym_scorers.scorer("number_sorting", "{}")(answer, problem) == score
    assert gym_scorers.scorer("number_sorting", "{}", exact_numbers=True)(answer, problem) == exact_score


@pytest.mark.parametrize("dataset", ["string_insertion", "spiral_matrix", "binary_matrix", "n_queens"])
def test_answers_are_not_run(dataset: str, tmp_path: Path) -> None:
    """The library would eval() these."""
    problem = item(dataset)
    trap = tmp_path / "trap"
    score = gym_scorers.scorer(dataset, "{}")
    assert score(f"open({str(trap)!r}, 'w').name", problem) == 0.0
    assert not trap.exists()
    assert score(problem["answer"], problem) == 1.0
    assert score(str(list(problem["answer"])), problem) <= 0.5


@pytest.mark.parametrize("dataset", ["simple_integration", "polynomial_multiplication"])
def test_formulas_are_not_run(dataset: str, tmp_path: Path) -> None:
    """The library would evaluate these by parse_expr()."""
    problem = item(dataset)
    trap = tmp_path / "trap"
    score = gym_scorers.scorer(dataset, "{}")
    assert score(f"open({str(trap)!r}, 'w').name", problem) == 0.0
    assert not trap.exists()
    assert score(problem["answer"], problem) == 1.0


def test_the_config_reaches_the_scorer_and_cheapness_is_known() -> None:
    assert gym_scorers.is_cheap("number_sorting", "{}")
    assert gym_scorers.is_cheap("gcd", '{"min_numbers": 3, "max_numbers": 3}')
    assert not gym_scorers.is_cheap("simple_integration", "{}")
    with pytest.raises(ValueError, match="no dataset 'number_sortng'"):
        gym_scorers.scorer("number_sortng", "{}")
