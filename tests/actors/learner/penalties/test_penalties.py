"""Overlong shaping and the concave length penalty: slow twins, what is counted, properties, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twins import penalties as twins

from headrace.actors.learner.advantages import Rloo
from headrace.actors.learner.intake import take_in
from headrace.actors.learner.penalties import ConcaveLength, Overlong
from headrace.actors.learner.penalties.length import COUNTS, concave, length_counts
from headrace.actors.session import ChatMessage, Group, SessionSpec, ToolCall, TrajectoryBuilder


@pytest.fixture
def with_tools(make_trajectory):
    """Prompt 3; turn of 4 tokens with two calls; 5 of tool output; turn of 2 with one call; 6; last turn of 3; 1 of
    template."""
    spec: SessionSpec = make_trajectory(1.0).spec
    builder = TrajectoryBuilder(spec)
    for context, sampled in ((3, 4), (5, 2), (6, 3)):
        builder.add_context([7] * context)
        builder.add_generation(np.full(sampled, 8), np.full(sampled, -1.0), np.full(sampled, 1), "stop")
    builder.add_context([9])
    call = ToolCall("look", {})
    messages = (
        ChatMessage("user", "?"),
        ChatMessage("assistant", "", (call, call)),
        ChatMessage("tool", "x"),
        ChatMessage("assistant", "", (call,)),
        ChatMessage("tool", "y"),
        ChatMessage("assistant", "z"),
    )
    return builder.build(messages=messages, ending="done", timings_s={}, notes={})


@given(length=st.integers(1, 60), maximum=st.integers(1, 50), data=st.data())
def test_overlong_equals_the_slow_twin(make_trajectory, length, maximum, data):
    margin = data.draw(st.integers(1, maximum))
    penalty = Overlong(max_tokens=maximum, margin_tokens=margin)(make_trajectory(1.0, sampled=(8,) * length))
    assert penalty == pytest.approx(twins.overlong(length, maximum, margin), abs=1e-12)
    assert 0 <= penalty <= 1


def test_overlong_counts_trained_tokens_alone(make_trajectory):
    """A prompt of 1000 tokens is no answer of 1000; the margin of 10 is a fifth, 2."""
    rule = Overlong(max_tokens=10)
    lengths = [8, 9, 10, 11]
    taken = [rule(make_trajectory(1.0, prompt=(5,) * 1000, sampled=(8,) * n)) for n in lengths]
    assert taken == [0.0, 0.5, 1.0, 1.0]


@given(x=st.floats(0, 1e6), k=st.floats(1e-6, 10), q=st.one_of(st.floats(0, 0.99), st.floats(1.01, 4), st.just(1.0)))
def test_concave_equals_the_slow_twin(x, k, q):
    assert concave(x, k, q) == pytest.approx(twins.concave(x, k, q), rel=1e-9, abs=1e-9)


@given(k=st.floats(1e-6, 10), q=st.floats(0, 4), xs=st.lists(st.floats(0, 1e6), min_size=3, max_size=3, unique=True))
def test_concave_rises_ever_more_slowly(k, q, xs):
    low, middle, high = sorted(xs)
    values = [concave(x, k, q) for x in (low, middle, high)]
    assert 0 <= values[0] <= values[1] <= values[2] < math.inf
    share = (middle - low) / (high - low)
    assert values[1] >= values[0] + share * (values[2] - values[0]) - 1e-9 * (1 + values[2])


@pytest.mark.parametrize("q", [1 - 1e-9, 1 + 1e-9])
def test_the_logarithm_is_the_limit(q):
    assert concave(500.0, 1e-2, q) == pytest.approx(concave(500.0, 1e-2, 1.0), rel=1e-7)


def test_what_is_counted(with_tools):
    assert length_counts(with_tools) == {
        "working_tokens": 6,
        "final_tokens": 3,
        "tool_output_tokens": 12,
        "tool_calls": 3,
        "turns": 3,
    }


@pytest.mark.parametrize(("name", "count"), [*zip(COUNTS, (6, 3, 12, 3, 3), strict=True)])
def test_each_weight_weighs_its_own_count(with_tools, name, count):
    rule = ConcaveLength(coefficient=0.5, weights={name: 2.0}, k=0.1, q=0.5)
    assert rule(with_tools) == pytest.approx(0.5 * twins.concave(2.0 * count, 0.1, 0.5), abs=1e-12)


def test_a_session_without_turns_is_all_final(make_trajectory):
    counts = length_counts(make_trajectory(1.0, sampled=(8, 9, 10)))
    assert (counts["working_tokens"], counts["final_tokens"], counts["turns"]) == (0, 3, 0)


def test_nothing_sampled_costs_nothing(make_trajectory):
    """cases B52: an empty completion; nothing divides by its length."""
    empty = make_trajectory(1.0, sampled=())
    weights = dict.fromkeys(COUNTS, 1.0)
    assert Overlong(max_tokens=4)(empty) == ConcaveLength(coefficient=1.0, weights=weights)(empty) == 0.0


def test_penalties_come_off_before_siblings_are_compared(make_trajectory):
    """Two right answers of which one is long: the short one is better; the reported reward stays the grader's."""
    members = tuple(replace(make_trajectory(1.0, session_id=f"s{n}", sampled=(8,) * n), messages=()) for n in (2, 10))
    intake = take_in([Group("g", members)], Rloo(), penalties={"overlong": Overlong(max_tokens=10)})
    assert [s.advantage for s in intake.sequences] == [1.0, -1.0]
    assert intake.dead_groups == {}
    figures = intake.figures()
    assert (figures["reward/mean"], figures["penalty/overlong"]) == (1.0, 0.5)


def test_a_missing_reward_is_not_made_one_by_a_penalty(make_group):
    """cases B41: what is missing stays missing, penalty or not."""
    intake = take_in([make_group([1.0, None, 0.0])], Rloo(), penalties={"overlong": Overlong(max_tokens=2)})
    assert intake.refused == {"reward_missing": 1}
    assert [s.advantage for s in intake.sequences] == [1.0, -1.0]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Overlong(max_tokens=0), "penalties.overlong.max_tokens must be >= 1"),
        (lambda: Overlong(max_tokens=4, margin_tokens=5), r"margin_tokens must be in \[1, max_tokens=4\], got 5"),
        (lambda: Overlong(max_tokens=4, margin_tokens=0), "margin_tokens must be in"),
        (lambda: ConcaveLength(coefficient=0.0, weights={"turns": 1.0}), "penalties.length.coefficient must be finite"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"turns": 1.0}, k=0.0), "penalties.length.k must be finite"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"turns": 1.0}, q=-0.1), "q must be finite and >= 0"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"turns": 1.0}, q=math.nan), "q must be finite and >= 0"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"thinking": 1.0}), "has no thinking; what can be counted is"),
        (lambda: ConcaveLength(coefficient=1.0, weights={}), "weights must be >= 0 and finite, one of them > 0"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"turns": -1.0}), "weights must be >= 0"),
        (lambda: ConcaveLength(coefficient=1.0, weights={"turns": 0.0}), "weights must be >= 0"),
    ],
)
def test_what_cannot_be_is_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()
