"""What a checkpoint holds, copied to memory of its own: training goes on while the copy is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headrace.actors.learner.adapters import Adapters


class ModelCopy:
    """What `save_pretrained` of a model, or of its adapters, would write at this moment."""

    def __init__(self, model: Any, state: dict[str, torch.Tensor] | None = None) -> None:
        """state: a copy of what `model.state_dict()` holds that was made already."""
        self._model = model
        self._state = copied(model.state_dict()) if state is None else state

    def save_pretrained(self, folder: Path) -> None:
        if isinstance(self._model, Adapters):
            self._model.save_pretrained(folder, self._state)
        else:
            self._model.save_pretrained(folder, state_dict=self._state)


def copied(value: Any, _done: dict[int, torch.Tensor] | None = None) -> Any:
    """The same containers with a copy of each tensor, on the CPU; what was one tensor (tied weights) stays one."""
    done = {} if _done is None else _done
    if isinstance(value, torch.Tensor):
        key = id(value) if value.numel() == 0 else hash((value.data_ptr(), value.shape, value.stride(), value.dtype))
        if key not in done:
            done[key] = value.detach().to("cpu", copy=True)
        return done[key]
    if isinstance(value, dict):
        return type(value)((name, copied(item, done)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(copied(item, done) for item in value)
    return value
