"""Ways to make a sorting answer wrong, for pre-training text that leaves a policy room to learn. Pure functions of a
generator.

Each takes the numbers as given, as sorted, and a random generator, and returns a list of the same length. It may happen
to be right (two equal numbers swapped): the corpus checks and draws again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

Corruption = Callable[[Sequence[str], Sequence[str], Random], list[str]]


def swap_two(given: Sequence[str], right: Sequence[str], random: Random) -> list[str]:
    """The right answer with two places exchanged."""
    wrong = list(right)
    if len(wrong) > 1:
        i, j = random.sample(range(len(wrong)), 2)
        wrong[i], wrong[j] = wrong[j], wrong[i]
    return wrong


def unsorted_copy(given: Sequence[str], right: Sequence[str], random: Random) -> list[str]:
    """The numbers in the order of the question."""
    return list(given)


def wrong_direction(given: Sequence[str], right: Sequence[str], random: Random) -> list[str]:
    return list(reversed(right))


def shuffled(given: Sequence[str], right: Sequence[str], random: Random) -> list[str]:
    """The numbers in any order."""
    return random.sample(list(right), len(right))


def digit_error(given: Sequence[str], right: Sequence[str], random: Random) -> list[str]:
    """The right answer with one digit of one number changed."""
    wrong = list(right)
    place = random.randrange(len(wrong))
    number = wrong[place]
    positions = [i for i, character in enumerate(number) if character.isdigit()]
    position = random.choice(positions)
    # a first digit of 0 would not be a JSON number, nor what the task's generator writes
    allowed = "123456789" if position == positions[0] and len(positions) > 1 else "0123456789"
    digit = random.choice([character for character in allowed if character != number[position]])
    wrong[place] = number[:position] + digit + number[position + 1 :]
    return wrong


CORRUPTIONS: dict[str, Corruption] = {
    "swap_two": swap_two,
    "unsorted_copy": unsorted_copy,
    "wrong_direction": wrong_direction,
    "shuffled": shuffled,
    "digit_error": digit_error,
}
