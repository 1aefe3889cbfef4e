"""Pre-training text of the sorting task."""

from __future__ import annotations

import json
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.tasks.corruptions import CORRUPTIONS
from headrace.actors.tasks.number_sorting import CHARACTERS
from headrace.actors.tasks.number_sorting_corpus import Mistakes, NumberSortingCorpus


def is_right(line: str) -> bool:
    prompt, answer = line.split("=")
    numbers = [int(number) for number in prompt[1:].split(",")]
    return bool(json.loads(answer) == sorted(numbers, reverse=prompt[0] == "v"))


@pytest.mark.parametrize("wrong_fraction", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", [None, *CORRUPTIONS])
def test_the_stated_fraction_is_wrong(wrong_fraction: float, kind: str | None) -> None:
    mistakes = Mistakes(wrong_fraction=wrong_fraction, kinds=None if kind is None else {kind: 1.0})
    corpus = NumberSortingCorpus(ascending=mistakes, descending=mistakes)
    lines = list(islice(corpus.documents(3), 2000))
    share = sum(not is_right(line) for line in lines) / len(lines)
    assert abs(share - wrong_fraction) < 0.04
    assert set("".join(lines)) <= set(CHARACTERS)


def test_directions_have_mistakes_of_their_own_after_the_clean_documents() -> None:
    corpus = NumberSortingCorpus(
        descending=Mistakes(wrong_fraction=1.0, kinds={"wrong_direction": 1.0}), min_value=10, num_clean=200
    )
    lines = list(islice(corpus.documents(3), 600))
    assert all(is_right(line) for line in lines[:200])
    assert all(is_right(line) == (line[0] == "^") for line in lines[200:])


def test_the_seed_alone_decides() -> None:
    corpus = NumberSortingCorpus()
    first, again, other = (list(islice(corpus.documents(seed), 50)) for seed in (1, 1, 2))
    assert first == again != other


def test_excluded_prompts_never_occur() -> None:
    small = NumberSortingCorpus(min_numbers=2, max_numbers=2, max_value=3)
    seen = {line.split("=")[0] + "=" for line in islice(small.documents(0), 500)}
    excluded = sorted(seen)[:10]
    clean = NumberSortingCorpus(min_numbers=2, max_numbers=2, max_value=3, exclude=lambda: excluded)
    assert not {line.split("=")[0] + "=" for line in islice(clean.documents(0), 500)} & set(excluded)


@given(
    st.lists(st.integers(0, 120).map(str), min_size=1, max_size=5),
    st.integers(0, 99),
    st.sampled_from(sorted(CORRUPTIONS)),
)
def test_corruptions_keep_the_length_and_write_json_numbers(given_numbers: list[str], seed: int, kind: str) -> None:
    right = sorted(given_numbers, key=int)
    wrong = CORRUPTIONS[kind](given_numbers, right, Random(seed))
    assert len(wrong) == len(right)
    assert all(isinstance(json.loads(number), int) for number in wrong)
    if kind == "digit_error":
        assert wrong != right


@pytest.mark.parametrize(
    "settings",
    [
        {"min_numbers": 3, "max_numbers": 2},
        {"min_value": 99},
        {"num_clean": -1},
    ],
)
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        NumberSortingCorpus(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"wrong_fraction": 1.5}, {"kinds": {"swapped": 1.0}}, {"kinds": {"shuffled": 0}}])
def test_mistakes_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        Mistakes(**settings)  # type: ignore[arg-type]
