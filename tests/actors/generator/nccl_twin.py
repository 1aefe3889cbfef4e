"""NCCL as it is seen from outside, without a GPU: ids of 128 bytes, and the memory communicator behind them. To be put
in the place of the back-end "cupy", whose name is all that a vLLM server's group asks of the learner."""

from __future__ import annotations

from typing import Any

from headrace.transport.weights.collective import memory


def make_unique_id() -> bytes:
    return memory.make_unique_id().ljust(128, b"\0")


def join(unique_id: bytes, **options: Any) -> memory.MemoryCommunicator:
    assert len(unique_id) == 128
    return memory.join(unique_id.rstrip(b"\0"), **options)
