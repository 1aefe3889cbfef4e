"""A learner of several ranks learns what one alone learns: processes that share weights and batches, over gloo."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("program.py")
LIMIT_S = 200
NUM_STEPS = 20


@pytest.fixture(scope="module")
def learn(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Any:
    """What a learner of `size` ranks saw in a case; each is run once."""
    folder = tmp_path_factory.mktemp("ranks")

    @functools.cache
    def run(size: int, case: str, first: int = 0, num: int = NUM_STEPS, into: str = "") -> dict[str, Any]:
        out = folder / f"{case}-{size}-{first}-{num}-{into}.json"
        checkpoints = folder / (into or f"checkpoints-{case}-{size}")
        arguments = [str(size), str(model_folder), str(checkpoints), case, str(first), str(num), str(out)]
        done = subprocess.run(
            [sys.executable, str(PROGRAM), *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert out.exists(), done.stderr[-4000:]
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return run


def assert_near(one: dict[str, Any], other: dict[str, Any], bound: float) -> None:
    np.testing.assert_allclose(one["reports"], other["reports"], rtol=bound, atol=bound)
    for a, b in zip(one["logprobs"], other["logprobs"], strict=True):
        np.testing.assert_allclose(a, b, atol=bound)
    assert one["evaluated"] == pytest.approx(other["evaluated"], abs=bound)
    assert one["observed"].keys() == other["observed"].keys()
    np.testing.assert_allclose(one["observed"]["none"], other["observed"]["none"], atol=bound)
    assert one["published"].keys() == other["published"].keys()
    np.testing.assert_allclose(list(one["published"].values()), list(other["published"].values()), atol=50 * bound)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "packed", "several_updates", "kl_in_reward", "ess"])
def test_two_ranks_learn_what_one_learns(learn: Any, case: str) -> None:
    """Losses, gradient norms, counts, log-probs and published weights over 20 steps."""
    assert_near(learn(1, case), learn(2, case), 1e-4)


@pytest.mark.slow
def test_three_ranks_and_autocast(learn: Any) -> None:
    assert_near(learn(1, "plain"), learn(3, "plain"), 1e-4)
    assert_near(learn(1, "bfloat16", num=3), learn(2, "bfloat16", num=3), 5e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2), (2, 3)])
def test_a_checkpoint_is_gone_on_from_by_any_number_of_ranks(learn: Any, before: int, after: int) -> None:
    """Ten steps, and ten more by others, are the twenty of one; what is shared is written by each."""
    whole = learn(1, "plain")
    learn(before, "plain", num=10, into=f"cut-{before}-{after}")
    resumed = copy.deepcopy(learn(after, "plain", first=10, num=10, into=f"cut-{before}-{after}"))
    assert resumed["resumed_at"] == 10
    resumed["reports"] = [*whole["reports"][:10], *resumed["reports"]]
    assert_near(whole, resumed, 1e-4)


@pytest.mark.slow
def test_a_rank_that_is_killed_is_an_error_at_the_others(learn: Any) -> None:
    assert "onnection" in learn(2, "plain!")["raised"]
