"""reasoning-gym's own scorers, with guards round those that run, or believe, what a policy wrote.

    countdown, puzzle24              sympy's parse_expr evaluates names and calls, floats round, numbers may be left out
    or repeated
    number_sorting                   NaN is within every tolerance of everything: "[NaN,NaN]" is full marks
    string_insertion, spiral_matrix,
    binary_matrix, n_queens          eval() of the answer
    the integrations, polynomials    parse_expr() of the answer

Everything else is the library's function as it is, for the very config that made the problem.
"""

from __future__ import annotations

import ast
import functools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from headrace.actors.grader.safe_expression import NotAllowed, check_formula, solves_with_all, value_and_numbers

Item = dict[str, Any]
Scorer = Callable[[str | None, Item], float]

_FUNCTIONS = (
    "sin",
    "cos",
    "tan",
    "sec",
    "csc",
    "cot",
    "exp",
    "log",
    "ln",
    "sqrt",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "Abs",
)
_WRONG, _INVALID = 0.05, 0.01
"""the library's partial marks in the expression games: a readable expression, and an unreadable one"""

_REVIEWED = frozenset(
    [
        "number_sorting",
        "countdown",
        "puzzle24",
        "chain_sum",
        "products",
        "decimal_chain_sum",
        "spell_backward",
        "word_sorting",
        "needle_haystack",
        "number_format",
    ]
)


@functools.lru_cache(maxsize=256)
def scorer(dataset: str, config_json: str, exact_numbers: bool = False) -> Scorer:
    """The guarded scorer of a dataset with that config (JSON). Raises ValueError for an unknown dataset or setting."""
    guard = _GUARDS.get(dataset)
    library = _library_scorer(dataset, config_json)
    if dataset == "number_sorting":
        return functools.partial(_number_sorting, library, exact_numbers)
    return library if guard is None else functools.partial(guard, library)


@functools.lru_cache(maxsize=256)
def is_cheap(dataset: str, config_json: str) -> bool:
    """Whether the scorer is known to be bounded and pure: the library's text comparison, or one that was read line by
    line."""
    import reasoning_gym
    from reasoning_gym.dataset import ProceduralDataset

    if dataset in _REVIEWED:
        return True
    made = reasoning_gym.create_dataset(dataset, **json.loads(config_json))
    return type(made).score_answer is ProceduralDataset.score_answer


def _library_scorer(dataset: str, config_json: str) -> Scorer:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if dataset not in DATASETS:
        raise ValueError(
            f"reasoning-gym has no dataset {dataset!r}; the task's entry must name one of its {len(DATASETS)}"
        )
    config = json.loads(config_json)
    if not config:
        found: Scorer = reasoning_gym.get_score_answer_fn(dataset)
        return found
    made: Scorer = reasoning_gym.create_dataset(dataset, **config).score_answer
    return made


def _number_sorting(library: Scorer, exact: bool, answer: str | None, item: Item) -> float:
    """The library's score for lists of finite numbers. It accepts numbers that are off by up to 1; `exact` does not."""
    numbers = _finite_numbers(answer)
    if numbers is None:
        return 0.0
    if exact and numbers != [float(number) for number in item["metadata"]["sorted_numbers"]]:
        return 0.0
    return library(answer, item)


def _finite_numbers(answer: str | None) -> list[float] | None:
    try:
        numbers = [float(number) for number in json.loads((answer or "").replace("'", '"'))]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return numbers if all(math.isfinite(number) for number in numbers) else None


def _countdown(library: Scorer, answer: str | None, item: Item) -> float:
    metadata = item["metadata"]
    return _expression_game(answer, numbers=metadata["numbers"], target=metadata["target"], wrong=_WRONG)


def _puzzle24(library: Scorer, answer: str | None, item: Item) -> float:
    return _expression_game(answer, numbers=item["metadata"]["numbers"], target=24, wrong=_INVALID)


def _expression_game(answer: str | None, *, numbers: Sequence[int], target: int, wrong: float) -> float:
    """1.0 only for exactly the target by exactly the given numbers; nothing is evaluated but whole-number
    arithmetic."""
    try:
        value_and_numbers(answer or "")
        return 1.0 if solves_with_all(answer or "", numbers=[int(n) for n in numbers], target=int(target)) else wrong
    except NotAllowed:
        return _INVALID


def _literal(library: Scorer, answer: str | None, item: Item) -> float:
    """Where the library would eval() an answer, let only a literal of Python (which eval cannot be abused by) reach
    it."""
    if answer is None or answer in _texts_of_right_answers(item):
        return library(answer, item)
    try:
        ast.literal_eval(answer.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return 0.0
    return library(answer.strip(), item)


def _texts_of_right_answers(item: Item) -> list[str]:
    valid = item["metadata"].get("valid_answers") or []
    expected = str(item["answer"])
    return [expected, expected.strip(), *(str(text) for text in valid)]


def _formula(library: Scorer, answer: str | None, item: Item) -> float:
    """Let only a formula of the problem's own variables reach the symbolic engine."""
    metadata = item["metadata"]
    names = {str(metadata["variable"]), "C"} if "variable" in metadata else {str(v) for v in metadata["variables"]}
    try:
        check_formula(answer or "", names=names, functions=_FUNCTIONS)
    except NotAllowed:
        return 0.0
    return library(answer, item)


_GUARDS: dict[str, Callable[[Scorer, str | None, Item], float]] = {
    "countdown": _countdown,
    "puzzle24": _puzzle24,
    "string_insertion": _literal,
    "spiral_matrix": _literal,
    "binary_matrix": _literal,
    "n_queens": _literal,
    "simple_integration": _formula,
    "intermediate_integration": _formula,
    "polynomial_multiplication": _formula,
}
