"""TensorBoard event files, written by tensorboard's own writer: torch stays out of this process.

A scalar is tagged `stream/name`, and its step is the sender's own counter (for "wall_s": whole seconds).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headrace.actors.messages import Metrics


class TensorBoardFile:
    """The writer has a thread of its own; `write` only queues. Imports tensorboard when made, since it takes half a
    second."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._writer: Any = EventFileWriter(str(folder), flush_secs=10)

    def write(self, record: Metrics) -> None:
        values = [
            self._summary.Value(tag=f"{record.stream}/{name}", simple_value=value)
            for name, value in record.values.items()
        ]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=int(record.step), summary=summary))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
