"""Pre-training text of the number_sorting task: problems with answers of which a stated fraction is wrong.

A document source for the learner's `pretrain` stage: `documents(seed)` yields one line a problem, for ever. It never
yields a problem whose prompt is excluded (the held-out prompts of an evaluation).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random

from headrace.actors.tasks.corruptions import CORRUPTIONS
from headrace.actors.tasks.number_sorting import Direction, compact_answer, compact_prompt

_TRIES = 20


class Mistakes:
    """wrong_fraction: part of the answers that are wrong, in [0, 1]
    kinds: weight of each kind among the wrong ones; names of `corruptions.CORRUPTIONS`
    """

    def __init__(self, *, wrong_fraction: float = 0.6, kinds: Mapping[str, float] | None = None) -> None:
        if not 0 <= wrong_fraction <= 1:
            raise ValueError(f"wrong_fraction must be in [0, 1], got {wrong_fraction}")
        weights = dict(kinds or {"swap_two": 1.0, "unsorted_copy": 1.0, "wrong_direction": 1.0})
        unknown = sorted(set(weights) - set(CORRUPTIONS))
        if unknown or not any(weight > 0 for weight in weights.values()) or any(w < 0 for w in weights.values()):
            raise ValueError(
                f"kinds must give weights >= 0, one of them > 0, to names of {sorted(CORRUPTIONS)}, got {weights}"
            )
        self.wrong_fraction = wrong_fraction
        self.kinds = weights

    def answer(self, given: list[str], right: list[str], random: Random) -> list[str]:
        """The right answer or, with probability `wrong_fraction`, a wrong one. Where the drawn kinds can't make one
        (all numbers equal) one digit is changed."""
        if random.random() >= self.wrong_fraction:
            return right
        names = list(self.kinds)
        for _ in range(_TRIES):
            (name,) = random.choices(names, weights=[self.kinds[n] for n in names])
            answer = CORRUPTIONS[name](given, right, random)
            if answer != right:
                return answer
        return CORRUPTIONS["digit_error"](given, right, random)


class NumberSortingCorpus:
    """min_numbers, max_numbers: how many numbers a problem has; min_value, max_value: integers, both ends included
    ascending, descending: the mistakes in the answers of each direction; None makes none
    num_clean: so many documents at the beginning have right answers only
    exclude: prompts that never occur, or a function that gives them (called at the first document)
    """

    def __init__(
        self,
        *,
        min_numbers: int = 2,
        max_numbers: int = 3,
        min_value: int = 0,
        max_value: int = 99,
        ascending: Mistakes | None = None,
        descending: Mistakes | None = None,
        num_clean: int = 0,
        exclude: Collection[str] | Callable[[], Collection[str]] = (),
    ) -> None:
        if not 1 <= min_numbers <= max_numbers:
            raise ValueError(f"1 <= min_numbers <= max_numbers must hold, got {min_numbers} and {max_numbers}")
        if min_value >= max_value:
            raise ValueError(f"min_value must be < max_value, got {min_value} and {max_value}")
        if num_clean < 0:
            raise ValueError(f"num_clean must be >= 0, got {num_clean}")
        self.min_numbers, self.max_numbers = min_numbers, max_numbers
        self.min_value, self.max_value = min_value, max_value
        self.num_clean = num_clean
        self._mistakes: dict[Direction, Mistakes | None] = {"ascending": ascending, "descending": descending}
        self._exclude = exclude

    def documents(self, seed: int) -> Iterator[str]:
        """Lines such as "^77,13,32=[13,32,77]", without an end, the same for the same seed."""
        random = Random(seed)
        excluded = frozenset(self._exclude() if callable(self._exclude) else self._exclude)
        for number in itertools.count():
            direction: Direction = "descending" if random.random() < 0.5 else "ascending"
            given, right = self._problem(direction, random)
            while (prompt := compact_prompt(given, direction)) in excluded:
                given, right = self._problem(direction, random)
            mistakes = self._mistakes[direction] if number >= self.num_clean else None
            yield prompt + compact_answer(mistakes.answer(given, right, random) if mistakes else right)

    def _problem(self, direction: Direction, random: Random) -> tuple[list[str], list[str]]:
        count = random.randint(self.min_numbers, self.max_numbers)
        numbers = [random.randint(self.min_value, self.max_value) for _ in range(count)]
        given = [str(number) for number in numbers]
        return given, [str(number) for number in sorted(numbers, reverse=direction == "descending")]
