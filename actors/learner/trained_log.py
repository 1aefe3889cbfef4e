"""trained.jsonl: the learner's own record of which sessions went into which optimizer step, and what came of it.

One line a step, flushed to the operating system before the dispatcher hears of the step, and cut back to the checkpoint
when the learner goes on from one: what stands here is what the weights have seen. Whoever wants to check the
dispatcher's ledger compares the two; with the graders' records it is enough to compute a step again (replay.py).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """step: optimizer steps done, this one included. session_ids: trained, in their order; of a batch of which nothing
    could be trained, all of it. left_out: of the same batch, refused. attempts: of each session, where it is not 0.
    oldest_version: tokens of versions before it were masked, where sessions have any; num_tokens: trained ones.
    num_updates, loss, grad_norm: see StepReport; None where nothing was trained, or they are not finite."""

    step: int
    session_ids: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    oldest_version: int | None = None
    num_tokens: int = 0
    num_updates: int = 0
    loss: float | None = None
    grad_norm: float | None = None

    def to_line(self) -> str:
        record: dict[str, Any] = {"step": self.step, "session_ids": self.session_ids}
        if self.left_out:
            record["left_out"] = self.left_out
        if self.attempts:
            record["attempts"] = dict(self.attempts)
        if self.num_tokens:
            record |= {"oldest_version": self.oldest_version, "num_tokens": self.num_tokens}
            record |= {"num_updates": self.num_updates}
            record |= {"loss": finite(self.loss), "grad_norm": finite(self.grad_norm)}
        return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> TrainedStep:
        """Raises KeyError, TypeError or ValueError where it is none."""
        return cls(
            step=int(record["step"]),
            session_ids=tuple(map(str, record["session_ids"])),
            left_out=tuple(map(str, record.get("left_out", ()))),
            attempts={str(session_id): int(attempt) for session_id, attempt in record.get("attempts", {}).items()},
            oldest_version=record.get("oldest_version"),
            num_tokens=int(record.get("num_tokens", 0)),
            num_updates=int(record.get("num_updates", 0)),
            loss=record.get("loss"),
            grad_norm=record.get("grad_norm"),
        )


class TrainedLog:
    """`path` None keeps no record. A half-written last line is ignored, and cut off."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, trained: TrainedStep) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(trained.to_line())

    def of_step(self, step: int) -> tuple[str, ...]:
        """The sessions of that step; () where it is not recorded."""
        for trained in self.steps():
            if trained.step == step:
                return trained.session_ids
        return ()

    def steps(self) -> Iterator[TrainedStep]:
        """In their order. Raises ValueError naming the file where a line is none of this record's."""
        if self._path is None or not self._path.exists():
            return
        for line in self._whole_lines():
            try:
                yield TrainedStep.of_record(json.loads(line))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{self._path} is damaged: {error!r} in the line {line[:80]!r}") from error

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


def finite(value: float | None) -> float | None:
    """None for what is not."""
    return value if value is not None and math.isfinite(value) else None
