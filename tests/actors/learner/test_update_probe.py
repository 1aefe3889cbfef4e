"""The probe that goes with each version: the text, the bound, and which versions it goes with."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.actors.learner.update_probe import UpdateProbe


def test_the_text_is_the_same_at_every_call_and_ordinary() -> None:
    probe = UpdateProbe(num_tokens=50)
    text = probe.text(20, special_ids=[0, 1, 7])
    assert text.tolist() == UpdateProbe(num_tokens=50).text(20, special_ids=[0, 1, 7]).tolist()
    assert text.dtype == np.int32
    assert len(text) == 50
    assert not {0, 1, 7} & set(text.tolist())


def test_the_bound_is_that_of_the_coarsest_precision_on_the_way() -> None:
    assert UpdateProbe(dtype="float32").bound("none", None) == 1e-4
    assert UpdateProbe(dtype="float32").bound("none", "bfloat16") == 0.03
    assert UpdateProbe(dtype="bfloat16").bound("none", None) == 0.03
    assert UpdateProbe(dtype="bfloat16", bound=0.5).bound("bfloat16") == 0.5


def of(probe: UpdateProbe, autocast: str, **logprobs: list[float]):
    arrays = {name: np.array(values, dtype=np.float32) for name, values in logprobs.items()}
    return probe.of(np.array([4, 5, 6], dtype=np.int32), arrays, autocast, None)


def test_versions_between_are_not_computed() -> None:
    probe = UpdateProbe(num_tokens=3, every_updates=2)
    assert [probe.autocasts(version, "none", None) for version in (1, 2, 3, 4)] == [(), ("none",), (), ("none",)]


def test_what_goes_with_a_version_is_the_text_and_its_logprobs() -> None:
    found = of(UpdateProbe(), "none", none=[-1.0, -2.0])
    assert (found.token_ids, found.logprobs, found.bound) == ((4, 5, 6), (-1.0, -2.0), 1e-4)


@pytest.mark.parametrize(
    ("dtype", "autocast", "travels_in"),
    [("bfloat16", "none", None), ("float32", "bfloat16", None), ("float32", "none", "bfloat16")],
)
def test_half_precision_is_computed_in_both_at_first_and_now_and_then(dtype, autocast, travels_in) -> None:
    probe = UpdateProbe(dtype=dtype)
    assert sorted(probe.autocasts(1, autocast, travels_in)) == ["bfloat16", "none"]
    assert probe.autocasts(1, autocast, travels_in)[0] == autocast
    of(probe, autocast, none=[-1.0, -2.0], bfloat16=[-1.0, -2.0])
    assert probe.autocasts(2, autocast, travels_in) == (autocast,)
    assert len(probe.autocasts(32, autocast, travels_in)) == 2
    assert UpdateProbe(dtype=dtype, bound=0.5).autocasts(1, autocast, travels_in) == (autocast,)


def test_a_model_that_half_precision_moves_far_is_allowed_three_times_that_and_no_more() -> None:
    """SmolLM2: 0.042 between float32 and bfloat16, and an engine that is 0.045 away from the learner is no alarm."""
    probe = UpdateProbe(dtype="bfloat16")
    assert of(probe, "none", none=[-10.0, -12.0], bfloat16=[-10.1, -12.0]).bound == pytest.approx(0.15, abs=1e-5)
    assert of(probe, "none", none=[-10.0, -12.0]).bound == pytest.approx(0.15, abs=1e-5), "until it is found anew"
    assert of(probe, "none", none=[-1.0, -2.0], bfloat16=[-1.001, -2.0]).bound == 0.03
    assert of(UpdateProbe(bound=0.5), "none", none=[-1.0, -2.0]).bound == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 1}, "num_tokens must be >= 2"),
        ({"every_updates": 0}, "every_updates"),
        ({"bound": 0.0}, "bound"),
        ({"dtype": "nonsense"}, "dtype must be one of"),
    ],
)
def test_settings_are_checked(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        UpdateProbe(**options)
