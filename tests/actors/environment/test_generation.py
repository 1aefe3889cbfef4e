"""One generation: tried again elsewhere, and checked before it is used."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.actors.environment.generation import checked, cut_by_length, generate
from headrace.actors.environment.phases import SessionError
from headrace.actors.messages import Completion, Generate
from headrace.actors.session import Sampling
from headrace.transport import DeadlineExceeded, LoopClock, PeerLost, Refused, RemoteError, run_virtual

REQUEST = Generate("s0", np.arange(3, dtype=np.int32), Sampling(max_tokens=8))


@pytest.fixture
def run_script(make_engine):
    def run(script, max_tries: int = 3):
        async def main():
            clock = LoopClock()
            engine = make_engine(script)
            done = await generate(
                REQUEST, ask=engine, clock=clock, deadline=clock.time() + 100, timeout_s=10, max_tries=max_tries
            )
            return done, engine

        return run_virtual(main())

    return run


@pytest.mark.parametrize("failure", [PeerLost("gone"), Refused("full"), RemoteError("engine died")])
def test_a_generation_is_asked_again_when_its_generator_fails(run_script, make_completion, failure):
    (completion, retries), engine = run_script([failure, make_completion([1, 2])])
    assert completion.token_ids.tolist() == [1, 2]
    assert retries == 1
    assert len(engine.requests) == 2


def test_an_aborted_generation_is_asked_again_without_its_partial_tokens(run_script, make_completion):
    (completion, retries), _ = run_script([make_completion([9], "aborted"), make_completion([1, 2])])
    assert completion.token_ids.tolist() == [1, 2]
    assert retries == 1


@pytest.mark.parametrize(
    ("failure", "reason", "num_asked"),
    [(PeerLost("gone"), "lost", 3), (RemoteError("boom"), "failed", 3), (DeadlineExceeded("late"), "timed_out", 1)],
)
def test_tries_are_bounded(make_engine, failure, reason: str, num_asked: int):
    async def main():
        clock = LoopClock()
        engine = make_engine([failure] * 5)
        with pytest.raises(SessionError) as raised:
            await generate(REQUEST, ask=engine, clock=clock, deadline=100, timeout_s=10, max_tries=3)
        assert raised.value.reason == reason
        assert len(engine.requests) == num_asked

    run_virtual(main())


@pytest.mark.parametrize("logprobs", [None, [], np.zeros(0, np.float32)])
def test_an_engine_without_logprobs_is_an_explicit_error(logprobs):
    """cases C76: NVIDIA-NeMo/Gym#1612: never a silent mask of zeros."""
    with pytest.raises(SessionError, match="no log-probs") as raised:
        checked(Completion(np.array([1, 2]), logprobs, np.array([1, 1]), "stop"), 8)
    assert raised.value.counter == "no_logprobs"


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf"), None])
def test_a_logprob_that_is_not_finite_is_rejected_by_name(bad):
    """cases D80: NVIDIA-NeMo/RL#2962."""
    with pytest.raises(SessionError) as raised:
        checked(Completion(np.array([1, 2]), np.array([-0.1, bad]), np.array([1, 1]), "stop"), 8)
    assert raised.value.counter == "logprob_not_finite"


@pytest.mark.parametrize(
    ("ids", "logprobs", "versions", "counter"),
    [
        ([1] * 9, [-1.0] * 9, [1] * 9, "too_many_tokens"),
        ([1, 2], [-1.0], [1, 1], "lengths_differ"),
        ([1, 2], [-1.0, -1.0], [1], "lengths_differ"),
        ([1], [0.5], [1], "logprob_positive"),
        ([1], [-0.5], [-1], "version_missing"),
    ],
)
def test_impossible_completions_are_rejected_by_name(ids, logprobs, versions, counter: str):
    with pytest.raises(SessionError) as raised:
        checked(Completion(np.array(ids), np.array(logprobs), np.array(versions), "stop"), 8)
    assert raised.value.counter == counter


def test_a_cut_is_seen_whatever_the_engine_says(make_completion):
    """cases C71."""
    assert cut_by_length(make_completion([1, 2], "length"), 8, (9,))
    assert cut_by_length(make_completion([1, 2], "stop"), 2, (9,))
    assert not cut_by_length(make_completion([1, 9], "stop"), 2, (9,))
    assert not cut_by_length(make_completion([1], "stop"), 2, (9,))
    assert not cut_by_length(make_completion([], "stop"), 2, (9,))
