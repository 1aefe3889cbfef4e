"""What is done to a staged version in shared memory, and to a generator's processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from chaos_run.victims import victims

from headrace.launch.processes import is_resource_tracker, processes_of_sessions
from headrace.transport.weights import Manifest
from headrace.transport.weights.shm import HEADER_BYTES


def flip_a_byte(manifest: Manifest, generator: np.random.Generator) -> Manifest:
    """In the segment that receivers map. Padding between tensors counts: it is checked too."""
    at = HEADER_BYTES + int(generator.integers(0, manifest.nbytes))
    with open(manifest.location, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << int(generator.integers(0, 8)))]))
    return manifest


def remove_the_segment(manifest: Manifest, generator: np.random.Generator) -> Manifest:
    Path(manifest.location).unlink()
    return manifest


def change_a_shape(manifest: Manifest, generator: np.random.Generator) -> Manifest:
    """One tensor is announced transposed to a row: as many bytes, another shape."""
    at = int(generator.integers(0, len(manifest.tensors)))
    tensors = list(manifest.tensors)
    tensors[at] = replace(tensors[at], shape=(1, int(np.prod(tensors[at].shape))))
    return replace(manifest, tensors=tuple(tensors))


DAMAGES: dict[str, Callable[[Manifest, np.random.Generator], Manifest]] = {
    "flipped byte": flip_a_byte,
    "removed segment": remove_the_segment,
    "wrong shape": change_a_shape,
}


def kill_a_generator(run_folder: Path, generator: np.random.Generator) -> bool:
    """SIGKILL to one process of a generator: the actor's own, or, as often, one of its engine's. False: none lives."""
    for victim in victims(run_folder):
        if victim.kind == "generator":
            others = [pid for pid in processes_of_sessions([victim.pid]) if pid != victim.pid]
            others = [pid for pid in others if not is_resource_tracker(pid)]
            pid = int(generator.choice(others)) if others and generator.random() < 0.5 else victim.pid
            os.kill(pid, signal.SIGKILL)
            return True
    return False
