"""Documents that a function makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


class GeneratedDocuments:
    """Texts made by a function of a random generator: make(random.Random) → text. Never runs dry, never repeats an
    epoch. In YAML: `make: {_target_: my_package.texts.make_text, _partial_: true}`."""

    def __init__(self, *, make: Callable[[random.Random], str]) -> None:
        if not callable(make):
            raise ValueError(f"documents.make must be callable, got {make!r}; in YAML give it _partial_: true")
        self._make = make

    def documents(self, seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        while True:
            yield self._make(rng)
