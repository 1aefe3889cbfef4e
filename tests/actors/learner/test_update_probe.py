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


def test_versions_between_are_not_computed() -> None:
    probe = UpdateProbe(num_tokens=3, every_updates=2)
    assert [probe.is_due(version) for version in (1, 2, 3, 4)] == [False, True, False, True]


def test_what_goes_with_a_version_is_the_text_and_its_logprobs() -> None:
    text = np.array([4, 5, 6], dtype=np.int32)
    found = UpdateProbe.of(text, np.array([-1.0, -2.0], dtype=np.float32), 0.1)
    assert (found.token_ids, found.logprobs, found.bound) == ((4, 5, 6), (-1.0, -2.0), 0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 1}, "num_tokens must be >= 2"),
        ({"every_updates": 0}, "every_updates"),
        ({"bound": 0.0}, "bound"),
    ],
)
def test_settings_are_checked(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        UpdateProbe(**options)
