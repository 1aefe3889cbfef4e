"""The weights of another run, out of one of its checkpoints; adapters are merged into what they go upon."""

from __future__ import annotations

from pathlib import Path


class RunCheckpoint:
    """run: a run folder. step: of the checkpoint; None: the newest."""

    def __init__(self, *, run: str, step: int | None = None) -> None:
        if not run:
            raise ValueError("model.run must not be empty; give the path of a run folder")
        self._checkpoints = Path(run).expanduser() / "checkpoints"
        self._step = step

    def prepare(self, target_dir: Path, seed: int) -> Path:
        """See ModelSource."""
        from headrace.actors.learner.export import export_checkpoint  # torch, where adapters are merged

        export_checkpoint(self._checkpoints, target_dir, step=self._step)
        return target_dir
