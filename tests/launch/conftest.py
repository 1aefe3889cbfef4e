"""What the launcher's tests share: plug-in classes that child processes can import, and waiting on processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Path:
    """tests/launch/plugins, importable here and in the processes that this one starts."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(PLUGINS), os.environ.get("PYTHONPATH")])))
    return PLUGINS


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a fact about other processes, which no virtual clock can bring about."""
    import time

    def wait(fact: Callable[[], object], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not fact():
            assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
            time.sleep(0.02)

    return wait
