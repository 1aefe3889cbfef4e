"""docs/faults.md has a row for each fault and case, and each row names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_ROWS = {
    name.strip(): line
    for line in (_TESTS.parent / "docs" / "faults.md").read_text().splitlines()
    if (name := line.partition("|")[2].partition("|")[0]) and re.fullmatch(r" ([EGHINW]?\d+) ", name)
}
_CASES = [
    *("G103", "G104", "G106", "G107", "G109", "G110"),
    *("H112", "H113"),
    *("I115", "I116", "I118", "I119", "I121", "I122", "I124", "I125"),
    *("E82", "E83", "E85", "E86", "E88", "E89", "E91", "E92"),
    *(f"W{number}" for number in range(1, 9)),
    "E94",
    *(f"N{number}" for number in range(1, 11)),
]


def test_every_fault_and_case_has_its_row() -> None:
    assert list(_ROWS) == [*(str(number) for number in range(1, 33)), *_CASES]


@pytest.mark.parametrize("name", _ROWS)
def test_its_tests_exist(name: str) -> None:
    cited = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", _ROWS[name])
    assert cited, "a row names at least one test"
    for path, test in cited:
        defined = set(re.findall(r"^ *(?:async )?def (\w+)", (_TESTS / path).read_text(), re.MULTILINE))
        assert not test or test in defined, f"{path} has no {test}"
        assert any(one.startswith("test_") for one in defined), f"{path} has no test"
