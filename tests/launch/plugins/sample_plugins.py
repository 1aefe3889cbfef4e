"""Classes that the tests' configurations name: what an author of plug-ins would write, small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.transport import Actor


class Tool:
    def __init__(self, *, weight: float = 1.0) -> None:
        self.weight = weight


@dataclass(frozen=True)
class Options:
    level: int = 0

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError(f"worker.options.level must be >= 0, got {self.level}")


class Worker(Actor):
    def __init__(
        self,
        *,
        path: str,
        slots: int = 4,
        rate: float = 1.0,
        verbose: bool = False,
        kind: Literal["a", "b"] = "a",
        names: Sequence[str] = (),
        weights: dict[str, float] | None = None,
        tool: Tool | None = None,
        make: Callable[[], Tool] | None = None,
        options: Options | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"worker.slots must be >= 1, got {slots}")


class Broken(Actor):
    """Its constructor has a defect."""

    def __init__(self, *, slots: int = 4) -> None:
        self.share = 1 / (slots - 4)


class NoActor:
    pass


class Model:
    def __init__(self, *, path: str) -> None:
        self._path = path

    def prepare(self, target_dir: Path, seed: int) -> Path:
        if not Path(self._path).exists():
            raise ValueError(f"there is no model folder {self._path}; give one that exists")
        target_dir.mkdir()
        return target_dir
