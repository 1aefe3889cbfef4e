"""scores.jsonl: how evaluations found the weights of each checkpoint, so that the best one is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from headrace.transport.durable import cut_half_line


class CheckpointScores:
    """A checkpoint has the score of the evaluations that came nearest behind it, before the next one: evaluations take
    the version that serves, which may be a step or two ahead. Of several the last counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of_step: dict[int, float] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    record = json.loads(line)
                    self._of_step[int(record["checkpoint"])] = float(record["score"])
                except (KeyError, TypeError, ValueError):  # half a line of a learner that was killed
                    continue

    def add(self, step: int, score: float, *, checkpoints: Iterable[int]) -> None:
        """An evaluation of the weights after `step`. checkpoints: the steps of all that were saved. Nothing where none
        is that old, or the score is no number."""
        earlier = [saved for saved in checkpoints if saved <= step]
        if not earlier or not math.isfinite(score):
            return
        self._of_step[max(earlier)] = score
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cut_half_line(self._path)
        with open(self._path, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"checkpoint": max(earlier), "step": step, "score": score}) + "\n")

    def best(self, checkpoints: Iterable[int]) -> int | None:
        """Of those that are there; the later one of equals. None where none has a score."""
        scored = [step for step in checkpoints if step in self._of_step]
        return max(scored, key=lambda step: (self._of_step[step], step), default=None)
