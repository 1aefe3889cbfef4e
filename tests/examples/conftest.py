"""The example packages are not installed with Headrace: their tests put them on the path, as PYTHONPATH would."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_actor"


@pytest.fixture(autouse=True)
def _example_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def example_folder() -> Path:
    return EXAMPLE
