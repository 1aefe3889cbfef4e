"""The console is for people: our messages and errors are on it, what libraries always say is not."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from headrace.launch.for_console import OURS, ForConsole, packages_of


def shown(*lines: str, packages: Collection[str] = OURS) -> list[str]:
    out: list[str] = []
    filtered = ForConsole(lambda process, text: out.append(text), packages)
    for line in lines:
        filtered("generator-0", line)
    return out


def test_our_messages_lose_their_second_clock_and_module() -> None:
    assert shown(
        "05:00:07 I headrace.process: grader/0 is up", "05:00:07 W headrace.actors.learner.actor: slow: 3 s"
    ) == [
        "grader/0 is up",
        "W slow: 3 s",
    ]


def test_the_users_own_classes_speak_as_ours_do() -> None:
    config = {"mirror": {"_target_": "mine.actors.Mirror"}, "grader": {"grading": [{"_target_": "other.Grading"}]}}
    packages = packages_of(config)
    assert packages == {"headrace", "mine", "other"}
    lines = ("05:00:07 I mine.actors: a swap", "05:00:07 W mine: x", "05:00:07 I other: y", "05:00:07 I mineral: z")
    assert shown(*lines, packages=packages) == ["a swap", "W x", "y"]


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=28524) WARNING 12-02 05:01:01 [cpu.py:224] Triton is not installed.",
        "(MainProcess pid=1) INFO 12-02 05:01:01 [core.py:1] Initializing",
        "WARNING 12-02 05:01:01 [cpu.py:224] Triton is not installed.",
        "05:00:15 W vllm.triton_utils.importing: Triton is installed, but …",
        "[W1202 05:00:30.927188959 utils.cpp:68] Warning: NUMA binding: …",
        "Loading weights: 100%|██████████| 30/30 [00:00<00:00, 5310.37it/s]",
        "Loading safetensors checkpoint shards:   0% Completed | 0/1 [00:00<?, ?it/s]",
        "",
    ],
)
def test_what_libraries_always_say_stays_in_the_log(line: str) -> None:
    assert shown(line) == []


def test_a_python_warning_takes_the_code_that_it_quotes_along() -> None:
    warning = "/lib/dispatcher.py:138: FutureWarning: `reduce_op` is deprecated"
    assert shown(warning, '  if hasattr(value, "__dict__"):', "  next") == ["  next"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Traceback (most recent call last):", '  File "engine.py", line 3, in step', "    x = y", "ValueError: no"],
        ["Fatal Python error: Segmentation fault"],
        ["(EngineCore pid=1) ERROR 12-02 05:01:01 [core.py:1] EngineCore failed"],
        ["(EngineCore pid=1) Process EngineCore:"],
        ["05:00:15 E asyncio: Task exception was never retrieved"],
        ["whole"],
    ],
)
def test_what_may_be_an_error_is_shown(lines: list[str]) -> None:
    assert shown(*lines) == lines
