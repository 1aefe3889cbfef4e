"""What counts as progress, and when its absence is told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.messages import Metrics
from headrace.actors.monitor.progress import Progress


def clock(stream: str, now_s: float, **values: float) -> Metrics:
    return Metrics(stream, "wall_s", now_s, values)


def test_nothing_is_told_before_something_has_moved() -> None:
    """A start-up, however long, is no stall."""
    progress = Progress(60)
    for now_s in range(0, 3600, 2):
        progress.take(clock("dispatcher", now_s, issued=0), now_s)
        progress.take(clock("generate", now_s, tokens_total=0), now_s)
        assert progress.look(now_s) is None
    progress.take(clock("generate", 3600, tokens_total=5), 3600)
    assert progress.look(3659) is None
    assert progress.look(3660) == 60


def test_two_actors_that_send_one_stream_in_turn_are_no_movement() -> None:
    progress = Progress(60)
    for now_s in range(0, 61):
        for tokens in (5, 7):
            progress.take(clock("generate", now_s, tokens_total=tokens, rate=float("nan")), now_s)
    assert progress.look(60.0) == 60.0, "the second's first record was the last news"
    assert progress.last_stream == "generate"


def test_steps_and_figures_of_ones_own_are_movement() -> None:
    progress = Progress(60)
    progress.take(Metrics("pretrain", "step", 1, {}), 0)
    progress.take(clock("thermometer", 0, degrees=20), 0)
    progress.take(clock("thermometer", 50, degrees=20.5), 50)
    assert progress.look(100) is None
    progress.take(Metrics("train", "step", 1, {}), 109)
    assert (progress.look(168), progress.look(169)) == (None, 60)


def test_a_record_without_fields_is_no_harm() -> None:
    """cases G103: verl#7155: something without the expected fields must not end the watching."""
    progress = Progress(60)
    for now_s in range(3):
        progress.take(Metrics("", "wall_s", now_s, {}), now_s)
    assert progress.look(1e9) is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 50)), max_size=80))
def test_each_episode_is_told_at_rising_intervals_and_ended_once(moves: list[tuple[bool, float]]) -> None:
    progress = Progress(10.0)
    now_s, last_s, told = 0.0, 0.0, []
    progress.take(Metrics("train", "step", 0, {}), now_s)
    for number, (is_movement, seconds) in enumerate(moves, 1):
        now_s += seconds
        if is_movement:
            progress.take(Metrics("train", "step", number, {}), now_s)
        lasted_s = progress.went_on()
        assert (lasted_s is not None) == (is_movement and bool(told))
        if is_movement:
            assert lasted_s is None or lasted_s == now_s - last_s
            last_s, told = now_s, []
        quiet_s = progress.look(now_s)
        if quiet_s is not None:
            assert quiet_s == now_s - last_s >= 10
            assert not told or quiet_s >= 20, "the second comes after twice the limit"
            told.append(quiet_s)
        assert now_s - last_s < 10 or told
        assert len(told) <= 8
