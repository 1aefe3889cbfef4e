"""The optimizer waits for whoever reads the weights; a stop ends the wait; a reader that never ends is named."""

from __future__ import annotations

import threading

import pytest

from headrace.actors.learner.holds import WeightHolds


def test_nobody_reads_nobody_waits():
    assert WeightHolds().wait_released(timeout_s=0.0)


def test_the_wait_ends_with_the_last_reader_however_often_one_says_so():
    holds = WeightHolds()
    first, second = holds.take(), holds.take()
    first.release()
    first.release()
    with pytest.raises(TimeoutError, match=r"still being read after 0 s \(1 readers\)"):
        holds.wait_released(timeout_s=0.0)
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(holds.wait_released(timeout_s=60.0)))
    waiting.start()
    with second:
        pass
    waiting.join(60.0)
    assert waited == [True]


def test_a_stop_ends_every_wait():
    holds = WeightHolds()
    holds.take()
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(holds.wait_released(timeout_s=60.0)))
    waiting.start()
    holds.interrupt()
    waiting.join(60.0)
    assert waited == [False]
    assert not holds.wait_released(timeout_s=0.0)
