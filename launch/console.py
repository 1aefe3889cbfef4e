"""What the launcher prints: whole lines, each with the time since the start and who says it."""

from __future__ import annotations

import sys
import time


class Console:
    def __init__(self, *, quiet: bool = False) -> None:
        self._start_s = time.monotonic()
        self._quiet = quiet

    def say(self, text: str) -> None:
        """The launcher's own progress."""
        self.line("launcher", text)

    def line(self, name: str, text: str) -> None:
        if not self._quiet:
            elapsed_s = time.monotonic() - self._start_s
            sys.stdout.write(f"{elapsed_s:8.1f}s  {name:<18} {text}\n")
            sys.stdout.flush()

    def error(self, text: str) -> None:
        """Never silenced; on standard error."""
        sys.stdout.flush()
        sys.stderr.write(text.rstrip("\n") + "\n")
        sys.stderr.flush()
