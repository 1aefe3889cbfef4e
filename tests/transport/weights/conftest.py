"""Makes `transports.py` beside it importable, and gives each contract test every transport."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]

from transports import TRANSPORTS, Transport  # noqa: E402


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    return request.param  # type: ignore[no-any-return]
