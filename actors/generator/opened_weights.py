"""A version that its engine's worker opened and verified itself, because it lies in device memory: whoever maps that
needs a CUDA context, which costs hundreds of megabytes of the GPU and which the worker has anyway.

The worker's side. Called by vllm_group_worker.py; the engine's side is vllm_workers.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights import Manifest, WeightReceiver, open_weights

if TYPE_CHECKING:
    from torch import Tensor


class OpenedWeights:
    """See WeightReceiver: open and verified. `send_s`, `verify_s`: what each took."""

    def __init__(self, manifest: Manifest, receiver: WeightReceiver, *, send_s: float, verify_s: float) -> None:
        self.manifest = manifest
        self._receiver = receiver
        self.send_s, self.verify_s = send_s, verify_s

    def verify(self) -> None:
        self._receiver.verify()

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        yield from self._receiver.tensors(include_tied=include_tied)

    def check_unchanged(self) -> None:
        self._receiver.check_unchanged()

    def close(self) -> None:
        self._receiver.close()


def open_verified(manifest: Manifest, device: str) -> OpenedWeights:
    """In a thread, while the worker steps the model on `device` ("cpu", "cuda:0"): on a stream of its own, so that no
    step waits for it. Raises WeightsMismatch; nothing stays mapped then."""
    with _beside(device):
        started_s = time.perf_counter()
        receiver = open_weights(manifest)
        opened_s = time.perf_counter()
        try:
            receiver.verify()
        except BaseException:
            receiver.close()
            raise
        return OpenedWeights(manifest, receiver, send_s=opened_s - started_s, verify_s=time.perf_counter() - opened_s)


@contextlib.contextmanager
def _beside(device: str) -> Iterator[None]:
    if device == "cpu":
        yield
    else:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
            yield
