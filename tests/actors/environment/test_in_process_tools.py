"""Tools in the process: outputs, failures and hangs are observations."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.actors.environment import Calculator, InProcessTools, Lookup, Tool
from headrace.actors.session import ChatMessage, ToolCall


class Hang:
    """A tool that waits until the test lets it go."""

    def __init__(self) -> None:
        self.tool = Tool("hang", "hangs", {"type": "object"})
        self.release = threading.Event()

    def call(self, arguments, task):
        self.release.wait()
        return "late"


class Long:
    tool = Tool("long", "long output", {"type": "object"})

    def call(self, arguments, task):
        return "x" * 10_000


def outputs(environment: InProcessTools, task, *calls: ToolCall) -> list[str]:
    async def main():
        await environment.reset(task)
        outcome = await environment.step(ChatMessage("assistant", "", calls))
        assert not outcome.done
        assert {message.role for message in outcome.messages} == {"tool"}
        return [message.content for message in outcome.messages]

    return asyncio.run(main())


@pytest.fixture
def task(make_spec):
    return make_spec().task


def test_outputs_come_in_the_order_of_the_calls(task):
    environment = InProcessTools(tools=[Calculator(), Lookup(table={"color": "red", "size": 3})])
    calls = [ToolCall("lookup", {"key": "color"}), ToolCall("calculator", {"expression": "-(2+3)*4"})]
    assert outputs(environment, task, *calls) == ["blue", "-20"]  # the task's own table comes first


def test_a_lookup_falls_back_on_its_own_table(task):
    lookup = Lookup(table={"size": 3}, entry_key="other")
    assert lookup.call({"key": "size"}, task) == "3"
    assert lookup.call({"key": "shape"}, task) == "there is no key 'shape'"


@pytest.mark.parametrize("expression", ["1/0", "2**9", "open('x')", "(", "a", "1" * 300])
def test_a_tools_failure_is_what_the_model_sees(task, expression: str):
    environment = InProcessTools(tools=[Calculator()])
    (output,) = outputs(environment, task, ToolCall("calculator", {"expression": expression}))
    assert output.startswith("calculator failed: ")


def test_a_tool_that_hangs_is_left_behind(task):
    hang = Hang()
    environment = InProcessTools(tools=[hang, Calculator()], call_timeout_s=0.05)
    calls = [ToolCall("hang", {}), ToolCall("calculator", {"expression": "1+1"})]
    try:
        assert outputs(environment, task, *calls) == ["hang did not answer within 0.05 s", "2"]
    finally:
        hang.release.set()


def test_long_outputs_are_cut_with_a_notice(task):
    (output,) = outputs(InProcessTools(tools=[Long()], max_output_chars=100), task, ToolCall("long", {}))
    assert output.count("x") == 100
    assert "of 10000 characters" in output


def test_an_answer_without_calls_ends_the_session(task):
    outcome = asyncio.run(InProcessTools(tools=[Calculator()]).step(ChatMessage("assistant", "4")))
    assert outcome.done


def test_tools_need_distinct_names():
    with pytest.raises(ValueError, match="distinct"):
        InProcessTools(tools=[Calculator(), Calculator()])
    with pytest.raises(ValueError, match="distinct"):
        InProcessTools(tools=[])
