"""What goes wrong in grading, as a person should hear of it: the first failure of each kind with its traceback, then
a count. Pure but for the log; called by the actor for each session.

A kind is what the record's notes call it (`raised`, `timed_out`, …), for an exception with its class. A grading that
fails on every session thus leaves a few lines, not one a session, and not none.
"""

from __future__ import annotations

import logging
from collections import Counter

from headrace.actors.grader.grading import Grade

log = logging.getLogger(__name__)

SUMMARY_EVERY_S = 30.0
_MAX_KINDS = 20
_SHOWN_KINDS = 8
_REMEDIES = {
    "raised": "a bug in the grading, or a task that it does not expect",
    "not_finite": "the grading must return a finite reward, or None where there is none",
    "timed_out": "see grader.timeout_s",
    "died": "see grader.memory_bytes",
    "worker_failed": "its process could not be had: no fault of the session",
    "unscorable": "the task cannot be scored, whatever the answer",
}


class FailureLog:
    """`every_s`: a summary at most this often."""

    def __init__(self, *, every_s: float = SUMMARY_EVERY_S) -> None:
        self._every_s = every_s
        self._told: set[str] = set()
        self._failed: Counter[str] = Counter()
        self._since_s: float | None = None
        self._num_graded = 0
        self._num_missing = 0

    def take(self, session_id: str, grade: Grade, *, now_s: float) -> None:
        """One session is graded, or could not be."""
        if self._since_s is None:
            self._since_s = now_s
        self._num_graded += 1
        self._num_missing += grade.reward is None
        failure = failure_of(grade)
        if failure is None:
            return
        kind, detail = failure
        if kind in self._told or len(self._told) >= _MAX_KINDS:
            self._failed[kind] += 1
            return
        self._told.add(kind)
        remedy = _REMEDIES.get(kind.partition(" ")[0], "see the notes of its record")
        log.warning(
            "grading failed (%s) for session %s, which gets %s; %s; further ones are counted and summed up\n%s",
            kind,
            session_id,
            "no reward" if grade.reward is None else f"the reward {grade.reward:g} of a killed grading",
            remedy,
            detail.rstrip(),
        )

    def tick(self, now_s: float, *, last: bool = False) -> None:
        """Sum up what failed since the last summary, where it is time. `last`: whatever is left, now."""
        if self._since_s is None or (not last and now_s - self._since_s < self._every_s):
            return
        if self._failed:
            log.warning(
                "gradings that failed again in the last %.0f s: %s; %d of %d graded sessions have no reward (%.0f%%)",
                now_s - self._since_s,
                ", ".join(f"{kind} {count}" for kind, count in self._failed.most_common(_SHOWN_KINDS)),
                self._num_missing,
                self._num_graded,
                100 * self._num_missing / self._num_graded,
            )
        self._failed.clear()
        self._since_s = None
        self._num_graded = self._num_missing = 0


def failure_of(grade: Grade) -> tuple[str, str] | None:
    """The kind and the detail of a failure, or None for a grade that is one."""
    kind = grade.notes.get("grading")
    detail = grade.notes.get("grading_detail", "")
    if kind is None:
        return None if grade.reward is not None else ("unscorable", _why_unscorable(grade))
    return (f"raised {_exception_class(detail)}" if kind == "raised" else kind), detail


def _why_unscorable(grade: Grade) -> str:
    return "; ".join(f"{name}: {text}" for name, text in grade.notes.items()) or "the grading returned None"


def _exception_class(traceback_text: str) -> str:
    """`ValueError`, out of the first line below a traceback's frames: `package.ValueError: what it says`."""
    lines = traceback_text.splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = [line for line in lines[frames[-1] :] if line[:1].strip()] if frames else lines[-1:]
    name = below[0].partition(":")[0].rpartition(".")[2].strip() if below else ""
    return name if name.isidentifier() else "an exception"
