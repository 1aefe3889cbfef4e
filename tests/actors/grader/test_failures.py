"""What the log says of gradings that fail: the first of each kind whole, the others as counts."""

from __future__ import annotations

import traceback

import pytest

from headrace.actors.grader.failures import FailureLog, failure_of
from headrace.actors.grader.grading import Grade, as_grade


def raised(error: Exception) -> Grade:
    try:
        raise error
    except Exception:
        return Grade(None, notes={"grading": "raised", "grading_detail": traceback.format_exc()})


class DomainError(ValueError):
    """Stands for an exception of a package."""


@pytest.mark.parametrize(
    ("grade", "kind"),
    [
        (Grade(0.0), None),
        (raised(KeyError("x")), "raised KeyError"),
        (raised(DomainError("first: line\nsecond: line")), "raised DomainError"),
        (Grade(0.0, notes={"grading": "timed_out"}), "timed_out"),
        (as_grade(Grade(float("inf"))), "not_finite"),
        (Grade(None, notes={"unscorable": "no tests in its entry"}), "unscorable"),
        (Grade(None), "unscorable"),
    ],
)
def test_kinds(grade: Grade, kind: str | None) -> None:
    failure = failure_of(grade)
    assert (failure and failure[0]) == kind


def test_the_first_of_each_kind_is_told_whole_and_the_rest_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(every_s=30.0)
    grades = [raised(KeyError("entry")), Grade(0.0, notes={"grading": "timed_out", "grading_detail": "ran past 1 s"})]
    for number in range(60):
        failures.take(f"s{number}", grades[number % 2] if number < 40 else Grade(1.0), now_s=number)
        failures.tick(number)
    failures.tick(100.0)
    told = [record.getMessage() for record in caplog.records]
    assert all(record.levelname == "WARNING" for record in caplog.records)
    assert "KeyError: 'entry'" in told[0]
    assert "for session s0, which gets no reward" in told[0]
    assert "s1, which gets the reward 0 of a killed grading" in told[1]
    assert "grader.timeout_s" in told[1]
    assert "raised KeyError 15, timed_out 14; 16 of 31 graded sessions have no reward (52%)" in told[2]
    assert "timed_out 5, raised KeyError 4; 4 of 29" in told[3]
    assert len(told) == 4


def test_kinds_without_end_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    for number in range(500):
        failures.take("s", Grade(None, notes={"grading": f"kind_{number}"}), now_s=0.0)
    failures.tick(1.0, last=True)
    assert len(caplog.records) == 21
    assert len(caplog.records[-1].getMessage()) < 500
