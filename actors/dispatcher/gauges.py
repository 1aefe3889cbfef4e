"""What the dispatcher tells the monitor every few seconds, and what it logs when a wait grows long. Reads, changes
nothing."""

from __future__ import annotations

import math

from headrace.actors.dispatcher.ledger import OPEN_STATES, DropReason
from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.training import TrainingSessions

_SHOWN_IDS = 8


class LongWait:
    """Tells when a wait that may span many asks has lasted for `every_s`, and again each `every_s`. Pure."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._since_s: float | None = None
        self.alarm_at_s = math.inf

    def begin(self, now_s: float) -> None:
        """The wait begins, or goes on."""
        if self._since_s is None:
            self._since_s, self.alarm_at_s = now_s, now_s + self._every_s

    def end(self) -> None:
        self._since_s, self.alarm_at_s = None, math.inf

    def alarm(self, now_s: float) -> float | None:
        """How long it has lasted, where that is to be told now."""
        if self._since_s is None or now_s < self.alarm_at_s:
            return None
        self.alarm_at_s = now_s + self._every_s
        return now_s - self._since_s


def gauges(training: TrainingSessions, placement: Placement) -> dict[str, float]:
    """The stream "dispatcher": ledger counts, depths, slots, verdicts on groups, mean lags before and inside the
    buffer; where groups go on without stragglers, the mean seconds of kept sessions beside those of all that began
    (stragglers with what they had run: the bias against long ones is at least this)."""
    ledger, counters = training.ledger, training.counters
    values: dict[str, float] = {name: float(count) for name, count in ledger.snapshot().items()}
    values |= {
        "ready_groups": len(training.batches.buffer),
        "open_groups": len(training.groups),
        "slots": placement.num_slots,
        "slots_used": placement.num_seated,
        "room": training.room,
        "version": training.versions.newest,
        "version_step": training.versions.newest_step,
        "learner_step": training.learner_step,
        "quarantined_tasks": len(training.issuer.quarantined),
        "trained_tokens": ledger.trained_tokens,
        "wasted_tokens": sum(ledger.wasted_tokens.values()),
    }
    values |= {f"wasted_tokens_{reason}": float(ledger.wasted_tokens[reason]) for reason in DropReason}
    values |= {name: float(count) for name, count in counters.items() if not name.endswith("_sum")}
    values |= training.issuer.order.figures()
    taken = counters["groups_taken"]
    if taken:
        values["lag_in_flight_mean"] = counters["lag_in_flight_sum"] / taken
        values["lag_in_queue_mean"] = counters["lag_in_queue_sum"] / taken
    kept, stragglers = counters["sessions_kept"], counters["stragglers_begun"]
    if stragglers:
        kept_s, straggler_s = counters["kept_ms_sum"] / 1000, counters["straggler_ms_sum"] / 1000
        values["session_s_kept_mean"] = kept_s / kept
        values["session_s_begun_mean"] = (kept_s + straggler_s) / (kept + stragglers)
    return {name: float(value) for name, value in values.items()}


def describe_wait(training: TrainingSessions, placement: Placement, *, waited_s: float, now_s: float) -> str:
    """One line: for how long, what is pending (counts, the oldest ids and their holders), and what admission waits
    for."""
    ledger = training.ledger
    counts = ", ".join(f"{ledger.count(state)} {state}" for state in OPEN_STATES)
    oldest = sorted((r for r in ledger.records() if not r.graded), key=lambda r: r.since_s)[:_SHOWN_IDS]
    shown = ", ".join(
        f"{r.spec.session_id} ({r.state} at {r.holder or 'no slot yet'}, {now_s - r.since_s:.0f} s, "
        f"attempt {r.spec.attempt + 1})"
        for r in oldest
    )
    return (
        f"the learner has waited {waited_s:.0f} s for a batch after step {training.learner_step}: {counts}; "
        f"pending: {shown or 'none'}; newest version {training.versions.newest} "
        f"(step {training.versions.newest_step}), admission leaves room for {training.room}; "
        f"{placement.num_seated} of {placement.num_slots} slots used in {len(placement.environments)} environments"
    )
