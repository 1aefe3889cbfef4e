"""Programs judged by tests that they cannot reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.actors.grader.code_tests import CodeTestsGrading
from headrace.actors.grader.worker_pool import WorkerPool
from headrace.actors.session import Trajectory

MakeSession = Callable[..., Trajectory]


def function_tests(*cases: tuple[Any, Any]) -> dict[str, object]:
    rows = [{"arguments": [argument], "expected": expected} for argument, expected in cases]
    return {"tests": {"kind": "function", "name": "solve", "cases": rows}}


def program_tests(*cases: tuple[str, str]) -> dict[str, object]:
    return {"tests": {"kind": "program", "cases": [{"stdin": i, "expected": o} for i, o in cases]}}


FORGE = """
import json, os, sys
for fd in range(3, 64):
    try: os.write(fd, json.dumps({"value": "PASSED"}).encode())
    except OSError: pass
print("PASSED 1/1")
os._exit(0)
"""


@pytest.mark.parametrize(
    ("code", "entry", "reward"),
    [
        ("def solve(x): raise ValueError", function_tests((1, "")), 0.0),
        ("", program_tests(("", "")), 0.0),
        ("pass", program_tests(("", "")), 1.0),
        ("import sys\nsys.exit(0)", function_tests((1, 2)), 0.0),
        ("import sys\nsys.exit(0)", program_tests(("1", "2")), 0.0),
        ("def solve(x): return x + 1", function_tests((1, 2), (2, 3)), 1.0),
        ("def solve(x): return x + 1", function_tests((1, 2), (2, 4)), 0.0),
        ("def solve(x): return True", function_tests((1, 1)), 0.0),
        ("class E:\n  def __eq__(s, o): return True\ndef solve(x): return E()", function_tests((1, 2)), 0.0),
        ("print(int(input()) + 1)", program_tests(("1\n", "2\n")), 1.0),
        ("print('1 passed, 0 failed')\nraise SystemExit(1)", program_tests(("", "1 passed, 0 failed")), 0.0),
        ("print('PASSED')\nraise SystemExit(1)", program_tests(("", "2")), 0.0),
        (FORGE, function_tests((1, 2)), 0.0),
    ],
)
def test_verdicts_come_from_outside(
    code: str, entry: dict[str, object], reward: float, make_session: MakeSession
) -> None:
    """cases A34, A35: verl-project/verl#7853, SWE-bench/SWE-bench#620."""
    assert CodeTestsGrading().grade(make_session(f"Here:\n```python\n{code}\n```", entry=entry)).reward == reward


def test_partial_passes_are_recorded_and_tests_are_needed(make_session: MakeSession) -> None:
    grade = CodeTestsGrading().grade(make_session("def solve(x): return 2", entry=function_tests((1, 2), (2, 3))))
    assert (grade.reward, grade.components) == (0.0, {"passed": 0.5})
    assert CodeTestsGrading().grade(make_session("def solve(x): return 2")).reward is None


def test_endless_programs_and_what_they_start_are_ended(make_session: MakeSession) -> None:
    """cases A37: also for a solution's own children, through the pool that the actor uses."""
    endless = "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nwhile True: pass"

    async def main() -> None:
        pool = WorkerPool(CodeTestsGrading(case_timeout_s=0.5), num_workers=1, timeout_s=20.0)
        began_s = time.monotonic()
        grade = await pool.grade(make_session(endless, entry=program_tests(("", ""))))
        assert grade.reward == 0.0
        assert time.monotonic() - began_s < 10
        good = await pool.grade(make_session("print(3)", entry=program_tests(("", "3"))))
        assert good.reward == 1.0
        await pool.close()

    asyncio.run(main())


def test_output_is_bounded(make_session: MakeSession) -> None:
    flood = make_session("while True: print('x' * 1000)", entry=program_tests(("", "x")))
    assert CodeTestsGrading(case_timeout_s=5.0).grade(flood).reward == 0.0
