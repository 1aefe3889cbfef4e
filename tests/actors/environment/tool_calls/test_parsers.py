"""Tool calls of every form, and what becomes of those that are none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.actors.environment.tool_calls import PARSERS, make_parser
from headrace.actors.session import Tool, ToolCall

ADD = Tool(
    "add",
    "adds",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["a"],
    },
)
NOW = Tool("now", "the time", {"type": "object"})
TOOLS = (ADD, NOW)


def hermes(payload: str) -> str:
    return f"Let me see.<tool_call>\n{payload}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes_json", hermes('{"name": "add", "arguments": {"a": 1}}') + hermes('{"name": "now"}')),
        ("xml", "<tool_call><function=add>\n<parameter=a>\n1\n</parameter>\n</function></tool_call><function=now></function>"),  # noqa: E501
        ("python", "[add(a=1), now()]"),
    ],
)  # fmt: skip
def test_calls_come_out_in_order(name: str, text: str):
    parsed = make_parser(name).parse(text, TOOLS)
    assert parsed.calls == (ToolCall("add", {"a": 1}), ToolCall("now", {}))
    assert parsed.malformed == ()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hermes_json", hermes('{"name": "add", "arguments": {"a": 1}'), "valid JSON"),
        ("hermes_json", hermes("[1,2]"), "JSON object"),
        ("hermes_json", hermes("5"), "JSON object"),
        ("hermes_json", hermes("true"), "JSON object"),
        ("hermes_json", hermes('{"name": "add", "arguments": {"a": NaN}}'), "NaN"),
        ("hermes_json", hermes("[" * 100_000), "nested"),
        ("hermes_json", hermes('{"name": "sub", "arguments": {}}'), 'no tool "sub"; the tools are: add, now'),
        ("hermes_json", hermes('{"name": "add", "arguments": "a=1"}'), "must be an object"),
        ("hermes_json", hermes('{"name": "add", "arguments": {}}'), "needs the argument"),
        ("hermes_json", hermes('{"arguments": {}}'), "name"),
        ("hermes_json", '<tool_call>{"name": "now"}', "missing"),
        ("xml", "<tool_call>add 1</tool_call>", "without"),
        ("xml", "<function=add><parameter=a>one</parameter></function>", "integer"),
        ("xml", "<function=add><parameter=a>1</parameter>", "missing"),
        ("xml", "<function=add>a is 1</function>", "only <parameter"),
        ("xml", "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>", "twice"),
        ("xml", "<function=add", "not closed"),
        ("python", "[add(a=1)", "valid Python"),
        ("python", "[add(1)]", "by keyword"),
        ("python", "[add(a=open('x'))]", "literals"),
        ("python", "[add(a=1), 5]", "must be a call"),
        ("python", f"[add(a={'(' * 1000})]", "valid Python"),
        ("python", f"[add(a='{'x' * 70_000}')]", "longer than"),
    ],
)
def test_malformed_calls_are_data_with_a_reason(name: str, text: str, reason: str):
    """cases C70: lsdefine/GenericAgent#746: JSON that is no object, and all its kind."""
    parsed = make_parser(name).parse(text, TOOLS)
    assert len(parsed.malformed) == 1
    assert reason in parsed.malformed[0].reason
    assert "Malformed tool call" in parsed.malformed[0].observation().content


def test_a_megabyte_is_quoted_in_800_characters():
    """cases C70: the bad payload must not fill the context."""
    payload = "x" * 1_000_000
    parsed = make_parser("hermes_json").parse(f"<tool_call>{payload}</tool_call>", TOOLS)
    content = parsed.malformed[0].observation().content
    assert content.count("x") <= 800 + 20
    assert "1000000 characters" in content
    named = make_parser("hermes_json").parse(f'<tool_call>{{"name": "{payload}"}}</tool_call>', TOOLS)
    assert named.malformed[0].observation().content.count("x") <= 800 + 40


def test_text_values_of_the_xml_form_are_taken_as_they_stand():
    code = 'if a < 1:\n    print("<b>")'
    text = f"<function=add><parameter=a>1</parameter><parameter=note>\n{code}\n</parameter></function>"
    assert make_parser("xml").parse(text, TOOLS).calls[0].arguments == {"a": 1, "note": code}


@pytest.mark.parametrize("text", ["[1, 2]", "5", "the answer (4)", "[see (above)", ""])
def test_an_answer_is_no_call(text: str):
    for name in ("none", "hermes_json", "xml"):
        assert not make_parser(name).parse(text, TOOLS).malformed
        assert not make_parser(name).parse(text, TOOLS).calls
    assert not make_parser("python").parse(text.replace("[see (", "see ("), TOOLS).calls


def test_a_call_that_was_only_considered_is_none():
    call = hermes('{"name": "now"}')
    assert not make_parser("hermes_json").parse(f"<think>{call}", TOOLS).calls
    assert not make_parser("hermes_json").parse(f"<think>{call}</think>no", TOOLS).calls
    assert make_parser("hermes_json").parse(f"{call}</think>{call}", TOOLS).calls == (ToolCall("now", {}),)


def test_unknown_parsers_are_named():
    with pytest.raises(ValueError, match="hermes_json"):
        make_parser("json")
    with pytest.raises(ValueError, match="parse"):
        make_parser(object())  # type: ignore[arg-type]


_PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<function=", "add", ">", "</function>", "<parameter=", "a", "{", "}", '"', "[",
     "(", ")", "]", ",", ":", "1", "name", "arguments", "<think>", "</think>", "\n", "\\", "é"]
)  # fmt: skip


@given(pieces=st.lists(_PIECES, max_size=40))
def test_no_parser_ever_raises(pieces: list[str]):
    for name in PARSERS:
        parsed = make_parser(name).parse("".join(pieces), TOOLS)
        assert all(json.dumps(call.arguments) for call in parsed.calls)
