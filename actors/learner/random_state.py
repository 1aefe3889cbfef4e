"""Every random generator of the process, as plain values and tensors that a checkpoint can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Of Python, NumPy (the global generators) and torch, every GPU included."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with what `random_state` gave. On other GPUs than those of before theirs begin anew."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if len(state["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        for device, generator in enumerate(state["cuda"]):
            torch.cuda.set_rng_state(generator, device)
