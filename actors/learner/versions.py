"""The learner's own record of the versions it made: which step each holds. On disk, so that a restart never reuses one.

A learner that goes on from a checkpoint says so here too. What earlier versions hold beyond that step is no part of any
later weights: their step counts as the one where they part, so that lags stay what they mean.
"""

from __future__ import annotations

import json
from pathlib import Path


class VersionLog:
    """Version 0, step 0 is what the model folder held. One line a version, or a resume; a half-written last line is
    ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.steps: dict[int, int] = {0: 0}
        self._line_end = ""
        if path.exists():
            text = path.read_text(encoding="utf-8")
            if text and not text.endswith("\n"):
                self._line_end = "\n"  # nothing may be joined to a half-written line
            for line in text.splitlines():
                try:
                    record = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the process died while it wrote this line; that version was never announced
                if "resumed_at" in record:
                    self._part(int(record["resumed_at"]))
                else:
                    self.steps[int(record["version"])] = int(record["step"])

    @property
    def newest(self) -> int:
        return max(self.steps)

    def claim(self, step: int) -> int:
        """The next version, now taken for good, for weights of `step`."""
        version = self.newest + 1
        self._append({"version": version, "step": step})
        self.steps[version] = step
        return version

    def resume(self, step: int) -> None:
        """The learner goes on from `step`."""
        self._append({"resumed_at": step})
        self._part(step)

    def _part(self, step: int) -> None:
        self.steps = {version: min(holds, step) for version, holds in self.steps.items()}

    def _append(self, record: dict[str, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line_end + json.dumps(record) + "\n")
        self._line_end = ""
