"""Groups whose ranks are threads of this process. Makes `groups.py` beside it importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

from groups import NUM_RANKS, devices  # noqa: E402


@pytest.fixture(params=["memory", "cupy"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cupy" and len(devices(name)) < NUM_RANKS:
        pytest.skip(f"NCCL needs a GPU for each rank: {NUM_RANKS} GPUs with CuPy")
    return name
