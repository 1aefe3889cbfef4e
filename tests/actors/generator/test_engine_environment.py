"""Variables for an engine's processes leave no trace."""

from __future__ import annotations

import os

import pytest

from headrace.actors.generator.engine_environment import engine_environment


def test_values_are_set_inside_and_restored_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_OLD", "before")
    monkeypatch.delenv("HEADRACE_TEST_NEW", raising=False)

    def fail_inside() -> None:
        with engine_environment({"HEADRACE_TEST_OLD": "during", "HEADRACE_TEST_NEW": "1"}):
            assert (os.environ["HEADRACE_TEST_OLD"], os.environ["HEADRACE_TEST_NEW"]) == ("during", "1")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert os.environ["HEADRACE_TEST_OLD"] == "before"
    assert "HEADRACE_TEST_NEW" not in os.environ
