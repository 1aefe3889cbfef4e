"""A log for what a hostile or broken peer can cause: the first ten of each kind, then every power of ten, so that
neither the disk nor the reader drowns. What is not said is counted all the same, by whoever calls this."""

from __future__ import annotations

import logging
from collections import Counter

_SAID_EACH = 10


class BoundedLog:
    """`kind`s are few and fixed: they are never made from what came."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._num: Counter[str] = Counter()

    def warning(self, kind: str, text: str, *args: object, exc_info: bool = False) -> None:
        self._num[kind] += 1
        num = self._num[kind]
        if num <= _SAID_EACH or num == 10 ** (len(str(num)) - 1):
            self._logger.warning(f"{text} (%d of this kind so far)", *args, num, exc_info=exc_info)
