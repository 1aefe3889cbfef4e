"""The learner's own record of the versions it made: which step each holds. On disk, so that a restart never reuses
one."""

from __future__ import annotations

import json
from pathlib import Path


class VersionLog:
    """Version 0, step 0 is what the model folder held. One line a version; a half-written last line is ignored."""

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
                self.steps[int(record["version"])] = int(record["step"])

    @property
    def newest(self) -> int:
        return max(self.steps)

    def claim(self, step: int) -> int:
        """The next version, now taken for good, for weights of `step`."""
        version = self.newest + 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line_end + json.dumps({"version": version, "step": step}) + "\n")
        self._line_end = ""
        self.steps[version] = step
        return version
