"""trained.jsonl: the learner's own record of which sessions went into which optimizer step.

One line a step, flushed to the operating system before the dispatcher hears of the step, and cut back to the checkpoint
when the learner goes on from one: what stands here is what the weights have seen. Whoever wants to check the
dispatcher's ledger compares the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path


class TrainedLog:
    """`path` None keeps no record. A half-written last line is ignored, and cut off."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, step: int, session_ids: tuple[str, ...]) -> None:
        """`step`: optimizer steps done, this one included."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "session_ids": session_ids}, separators=(",", ":")) + "\n")

    def of_step(self, step: int) -> tuple[str, ...]:
        """The sessions of that step; () where it is not recorded."""
        if self._path is None or not self._path.exists():
            return ()
        for record in map(json.loads, self._whole_lines()):
            if record["step"] == step:
                return tuple(record["session_ids"])
        return ()

    def cut_back(self, step: int) -> None:
        """Forget what was trained after `step`. In one rename: a reader sees the one or the other."""
        if self._path is None or not self._path.exists():
            return
        staged = self._path.with_name(f".{self._path.name}")
        with staged.open("w", encoding="utf-8") as file:
            file.writelines(line for line in self._whole_lines() if json.loads(line)["step"] <= step)
        os.replace(staged, self._path)

    def _whole_lines(self) -> Iterator[str]:
        assert self._path is not None
        with self._path.open(encoding="utf-8") as lines:
            yield from (line for line in lines if line.endswith("\n"))
