"""What an environment counts."""

from __future__ import annotations

from headrace.actors.environment.counters import SessionCounters


def test_many_discards_raise_an_alarm():
    """cases C67: marin-community/marin#9103: 68 of 69 rollouts were discarded and nobody was told."""
    counters = SessionCounters()
    for _ in range(27):
        counters.finished()
    for _ in range(3):
        counters.failed("timed_out")
    assert counters.values(running=0)["discard_alarm"] == 0.0
    counters.failed("prefix_mismatch")
    values = counters.values(running=4)
    assert values["discard_alarm"] == 1.0
    assert values["errors"] == 4.0
    assert values["errors/prefix_mismatch"] == 1.0
    assert values["sessions_running"] == 4.0


def test_nothing_divides_by_zero():
    """cases B52: before the first turn the latencies are absent."""
    values = SessionCounters().values(running=0)
    assert values["discarded_fraction"] == 0.0
    assert "turn_s_p50" not in values


def test_latencies_are_of_recent_turns():
    counters = SessionCounters()
    for n in range(1, 101):
        counters.turn(tokens_in=1, tokens_out=2, seconds=float(n), retries=0)
    values = counters.values(running=0)
    assert (values["turn_s_p50"], values["turn_s_p95"], values["tokens_out"]) == (51.0, 96.0, 200.0)
