"""Grades a program by tests: each case runs the solution in a fresh interpreter, and the verdict is made outside of it.

The expected values never enter the solution's process: it can only say what it returned or printed, and lying about
that is answering. A report that it prints, an exit before the tests or an exception is a failed case. Runs in a
grading child (worker_pool.py), which also ends whatever a solution leaves behind. This is NOT a security boundary:
the solution sees the machine's files and network. Use it only where that is acceptable; a sandboxed environment is
the place for code of unknown intent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from headrace.actors.grader.extraction import opens_reasoning, strip_reasoning
from headrace.actors.grader.grading import Grade, Isolation, answer_text, unscorable_grade
from headrace.actors.session import Task, Trajectory

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.S)
_MAX_OUTPUT_BYTES = 1 << 20

_PRELUDE = """
import ctypes, json, os, resource, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
code_fd, out_fd = int(sys.argv[1]), int(sys.argv[2])
request = json.loads(os.pread(code_fd, 1 << 26, 0))
sys.argv = ["solution"]
space = {{"__name__": "__main__"}}
"""
_RUN_PROGRAM = 'exec(compile(request["code"], "solution", "exec"), space)\n'
_CALL_FUNCTION = """
space["__name__"] = "solution"
exec(compile(request["code"], "solution", "exec"), space)
os.write(out_fd, json.dumps({"value": space[request["name"]](*request["arguments"])}).encode())
"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one process of a solution left: its exit code (negative: a signal; None: killed at the limit) and its
    output."""

    exit_code: int | None
    output: bytes


class CodeTestsGrading:
    """`task.entry["tests"]` holds the cases, either kind:

        {"kind": "function", "name": "solve", "cases": [{"arguments": [1], "expected": 2}, …]}
        {"kind": "program", "cases": [{"stdin": "1\\n", "expected": "2\\n"}, …]}

    1.0 where all cases pass, else 0.0; the component `passed` is the fraction. The solution is the last fenced block
    of the answer, or the whole answer. case_timeout_s: wall limit of one case. White space at line ends and at the
    end does not matter in output.
    """

    isolation: Isolation = "process"
    killed_reward: float | None = 0.0

    def __init__(self, *, case_timeout_s: float = 2.0, prompt_tail: str = "") -> None:
        if case_timeout_s <= 0:
            raise ValueError(f"case_timeout_s must be > 0, got {case_timeout_s}")
        self.case_timeout_s = case_timeout_s
        self.prompt_tail = prompt_tail

    def unscorable(self, task: Task) -> str | None:
        return _no_tests(task) if _tests(task) is None else None

    def grade(self, trajectory: Trajectory) -> Grade:
        tests = _tests(trajectory.spec.task)
        if tests is None:
            return unscorable_grade(_no_tests(trajectory.spec.task))
        visible = strip_reasoning(answer_text(trajectory), opened_by_prompt=opens_reasoning(self.prompt_tail))
        code = "" if visible is None else solution_code(visible)
        passed = [bool(code.strip()) and self._passes(code, tests, case) for case in tests["cases"]]
        fraction = sum(passed) / len(passed)
        return Grade(1.0 if all(passed) else 0.0, {"passed": fraction})

    def _passes(self, code: str, tests: dict[str, Any], case: dict[str, Any]) -> bool:
        if tests["kind"] == "function":
            request = {"code": code, "name": tests["name"], "arguments": case["arguments"]}
            run = run_solution(_CALL_FUNCTION, request, stdin="", timeout_s=self.case_timeout_s, capture_stdout=False)
            return run.exit_code == 0 and _returned(run.output, case["expected"])
        run = run_solution(
            _RUN_PROGRAM, {"code": code}, stdin=case["stdin"], timeout_s=self.case_timeout_s, capture_stdout=True
        )
        return run.exit_code == 0 and _lines(run.output.decode(errors="replace")) == _lines(case["expected"])


def _no_tests(task: Task) -> str:
    return f"task {task.task_id} has no tests in its entry"


def solution_code(text: str) -> str:
    blocks = _FENCED.findall(text)
    return blocks[-1] if blocks else text


def run_solution(body: str, request: dict[str, Any], *, stdin: str, timeout_s: float, capture_stdout: bool) -> Run:
    """Run `body` with the request in a fresh interpreter in a session of its own; what it started is killed with it.
    The output is what it printed (capture_stdout) or what it wrote to its result file."""
    code_fd, out_fd = os.memfd_create("request"), os.memfd_create("result")
    try:
        os.write(code_fd, json.dumps(request).encode())
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PRELUDE.format(limit=_MAX_OUTPUT_BYTES) + body, str(code_fd), str(out_fd)],
            stdin=subprocess.PIPE,
            stdout=out_fd if capture_stdout else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[code_fd, out_fd],
            start_new_session=True,
        )
        try:
            process.communicate(stdin.encode(), timeout=timeout_s)
            exit_code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            _end(process)
        return Run(exit_code, os.pread(out_fd, _MAX_OUTPUT_BYTES, 0))
    finally:
        os.close(code_fd)
        os.close(out_fd)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the solution's process group, and reap it."""
    with contextlib.suppress(ProcessLookupError):  # nothing is left of the group
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tests(task: Task) -> dict[str, Any] | None:
    tests = task.entry.get("tests")
    if not isinstance(tests, dict) or tests.get("kind") not in ("function", "program") or not tests.get("cases"):
        return None
    return tests


def _returned(output: bytes, expected: object) -> bool:
    """Whether the result file says that the function returned `expected` (compared as JSON values: 1 is not True)."""
    try:
        reported = json.loads(output)
    except ValueError:
        return False
    if not isinstance(reported, dict) or "value" not in reported:
        return False
    return json.dumps(reported["value"], sort_keys=True) == json.dumps(expected, sort_keys=True)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
