"""What a function of one's own gives, as records. Positions count them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class PythonRecords:
    """function: called without arguments, gives an iterable of mappings that ends, the same ones each time and in every
    process. In YAML: function: {_target_: my_package.make_problems, _partial_: true, …its arguments}."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def parts(self) -> list[str]:
        function = getattr(self._function, "func", self._function)  # below functools.partial
        return [f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"]

    def read(self, part: str, position: int = 0) -> Iterator[tuple[Any, int]]:
        for number, record in enumerate(itertools.islice(self._function(), position, None), start=position + 1):
            yield record, number

    def fingerprint(self) -> str:
        """Of every record."""
        digest = hashlib.blake2b(digest_size=16)
        for record in self._function():
            digest.update(json.dumps(record, sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()
