"""Fifty thousand hostile messages against a live runtime; `benchmarks/fuzz.py` sends a million."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from headrace.transport import run_virtual

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("seed", range(5))
def test_nothing_escapes_nothing_stays_and_all_is_counted(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    caplog.set_level("CRITICAL")
    target = importlib.import_module("fuzzing.target")
    result = run_virtual(target.Fuzzing(seed).run(10_000))
    assert result["frames"] == result["counters"]["batches"] - result["offers"] == 10_000
    assert 3_000 < result["accepted"] < 9_000, "the fuzzer must reach what lies behind the header"
    assert all(result["handled"][kind] > 20 for kind in ("text", "numbers", "count"))
    assert result["resident_growth"] < 0.1
    assert result["own_asks"]["PeerLost"] > 0
