"""What a launcher is given and what it gives back. Pure data; every launcher (local, in-process, third parties') uses
these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from headrace.launch.console import Console
from headrace.launch.topology import ProcessPlan

Ending = Literal["finished", "interrupted", "terminated", "failed"]

EXIT_CODES: dict[Ending, int] = {"finished": 0, "failed": 1, "interrupted": 130, "terminated": 143}
"""As shells count: 128 + the signal's number. A configuration that cannot work is 2."""
EXIT_BAD_CONFIG = 2


@dataclass(frozen=True, slots=True)
class Job:
    """One run whose configuration has been checked. `processes` are in the order of the topology."""

    folder: Path
    run_id: str
    config: Mapping[str, Any]
    processes: tuple[ProcessPlan, ...]
    console: Console


@dataclass(frozen=True, slots=True)
class Outcome:
    """`reason` is for a person: why it finished, or the first cause of its failure with the last lines of the
    process. `restarts`: how often a process was started again, for those that were."""

    ending: Ending
    reason: str
    restarts: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.ending]


class Launcher(Protocol):
    """Made from the config group `launch`. Every launcher passes tests/launch/test_launcher_contract.py."""

    async def launch(self, job: Job) -> Outcome:
        """Run the topology until RunFinished, a signal or a failure; when it returns nothing of the run is alive."""
