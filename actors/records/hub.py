"""A data set of the Hugging Face hub, or a folder in its format, as records. Rows lie in memory-mapped files.
Positions are row numbers. Needs the package datasets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROWS_A_CHUNK = 256


class HubRecords:
    """name: of the hub, a folder with data files, or one that `save_to_disk` wrote. config: of a data set that has
    several. revision: a commit, tag or branch of the hub, so that a run can be repeated."""

    def __init__(
        self, name: str, *, config: str | None = None, split: str = "train", revision: str | None = None
    ) -> None:
        self._name = name
        self._config = config
        self._split = split
        self._revision = revision
        self._loaded: Any = None

    def parts(self) -> list[str]:
        return [self._split]

    def read(self, part: str, position: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        table = self._table()
        while position < len(table):
            chunk = table[position : position + _ROWS_A_CHUNK]
            names = list(chunk)
            for values in zip(*chunk.values(), strict=True):
                position += 1
                yield dict(zip(names, values, strict=True)), position

    def fingerprint(self) -> str:
        """Of the columns, the number of rows, and the first and the last row: the same wherever the data set lies."""
        table = self._table()
        edges = [table[index] for index in (0, len(table) - 1) if len(table)]
        described = json.dumps([self._config, self._split, len(table), table.column_names, edges], default=str)
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    def _table(self) -> Any:
        if self._loaded is None:
            try:
                import datasets
            except ModuleNotFoundError:
                raise ValueError("data sets of the hub need the package datasets: pip install headrace[data]") from None
            if (Path(self._name) / "state.json").is_file() or (Path(self._name) / "dataset_dict.json").is_file():
                loaded = datasets.load_from_disk(self._name)
                if isinstance(loaded, dict):
                    if self._split not in loaded:
                        raise ValueError(f"{self._name} has no split {self._split!r}; it has {', '.join(loaded)}")
                    loaded = loaded[self._split]
            else:
                loaded = datasets.load_dataset(self._name, self._config, split=self._split, revision=self._revision)
            self._loaded = loaded
        return self._loaded
