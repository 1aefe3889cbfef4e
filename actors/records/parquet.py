"""Parquet files as records: one dict a row, read by row groups. Positions are row numbers. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.actors.records.protocol import Paths, files_fingerprint, found_files

_ROWS_A_CHUNK = 256


class ParquetRecords:
    """columns: those that are read; None reads all."""

    def __init__(self, paths: Paths, *, columns: Sequence[str] | None = None) -> None:
        self._paths = paths
        self._columns = None if columns is None else list(columns)

    def parts(self) -> list[str]:
        return found_files(self._paths)

    def read(self, part: str, position: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        parquet = _parquet()
        try:
            file = parquet.ParquetFile(part)
        except Exception as error:  # pyarrow's own kinds
            raise ValueError(f"{part} cannot be read as parquet: {error}") from error
        with file:
            missing = sorted(set(self._columns or ()) - set(file.schema_arrow.names))
            if missing:
                raise ValueError(f"{part} has no column {', '.join(missing)}; it has {file.schema_arrow.names}")
            row = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row + rows <= position:
                    row += rows
                    continue
                for batch in file.iter_batches(_ROWS_A_CHUNK, row_groups=[group], columns=self._columns):
                    for record in batch.slice(max(0, position - row)).to_pylist():
                        position += 1
                        yield record, position
                    row += len(batch)

    def fingerprint(self) -> str:
        return files_fingerprint(self.parts())


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise ValueError("parquet files need pyarrow: pip install headrace[data]") from None
    return parquet
