"""From a run folder to a Hugging Face folder. The copying is the learner's own knowledge of its checkpoints."""

from __future__ import annotations

from pathlib import Path


def export_run(folder: Path, target: Path, *, version: int | None = None, merge: bool = True) -> Path:
    """Write weights and tokenizer of `folder` to `target`, which must not exist; the newest checkpoint by default, its
    adapters, if it is of adapters, merged into their base unless `merge` is False. Returns the checkpoint that was
    copied. Raises ValueError (which versions there are, which file is damaged) and OSError (the target)."""
    from headrace.actors.learner.export import export_checkpoint  # imports torch where weights are converted

    return export_checkpoint(folder / "checkpoints", target, version=version, merge=merge)
