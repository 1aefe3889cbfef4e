"""A conversation's ids are those of the session in which it would have happened, and the marks are exactly what the
assistant would have sampled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.rendering import (
    ChatRenderer,
    Conversation,
    PlainRenderer,
    Renderer,
    conversation_ids,
    conversation_of,
)
from headrace.actors.session import ChatMessage, Tool, ToolCall

Chat = Callable[[str], ChatRenderer]

TOOL_TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""  # noqa: E501


def spans(renderer: Renderer, ids: list[int], mask: list[bool]) -> list[tuple[bool, str]]:
    """(marked, text) of each stretch."""
    found: list[tuple[bool, list[int]]] = []
    for token_id, marked in zip(ids, mask, strict=True):
        if not found or found[-1][0] != marked:
            found.append((marked, []))
        found[-1][1].append(token_id)
    return [(marked, renderer.text(stretch, special_tokens=True)) for marked, stretch in found]


def talk(*turns: tuple[Any, str]) -> Conversation:
    return Conversation(tuple(ChatMessage(role, text) for role, text in turns))


THREE_TURNS = talk(
    ("system", "be brief"), ("user", "hello"), ("assistant", "hello Pan"), ("user", "12?"), ("assistant", "12 an"),
    ("user", "thanks"),
)  # fmt: skip


def test_what_the_assistant_says_and_its_stop_token_are_marked(chat: Chat) -> None:
    renderer = chat("append_only")
    ids, mask = conversation_ids(renderer, THREE_TURNS)
    assert spans(renderer, ids, mask) == [
        (False, "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        (True, "hello Pan<|im_end|>"),
        (False, "\n<|im_start|>user\n12?<|im_end|>\n<|im_start|>assistant\n"),
        (True, "12 an<|im_end|>"),
    ]


def test_a_turn_that_only_the_next_marker_closes_is_stopped_by_it(chat: Chat) -> None:
    """The GLM-like template: the marker is what the model samples to stop, so it is learned; at the end EOS is."""
    renderer = chat("glm_like")
    ids, mask = conversation_ids(renderer, talk(("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d")))
    assert spans(renderer, ids, mask) == [
        (False, "<|user|>\na<|assistant|>\n"),
        (True, "b<|observation|>"),
        (False, "\nc<|assistant|>\n"),
        (True, "d<|endoftext|>"),
    ]


def test_several_tool_messages_between_turns(chat: Chat) -> None:
    """F3a: they share one user turn."""
    renderer = chat("qwen_like")
    conversation = talk(("user", "a"), ("assistant", "b"), ("tool", "1"), ("tool", "2"), ("assistant", "d"))
    ids, mask = conversation_ids(renderer, conversation)
    assert spans(renderer, ids, mask)[2] == (
        False,
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n",
    )


def test_tool_calls_are_what_the_template_writes(make_tokenizer: Callable[..., Any]) -> None:
    renderer = ChatRenderer(make_tokenizer(TOOL_TEMPLATE))
    record = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Oslo"}'}},
                {"name": "look", "arguments": {"at": "Bergen"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "rain"},
            {"role": "assistant", "content": "rain"},
        ],
        "tools": [{"type": "function", "function": {"name": "look", "description": "d",
                                                    "parameters": {"type": "object"}}}],
    }  # fmt: skip
    conversation = conversation_of(json.loads(json.dumps(record)))
    assert conversation.tools == (Tool("look", "d", {"type": "object"}),)
    assert conversation.messages[1].tool_calls == (
        ToolCall("look", {"at": "Oslo"}), ToolCall("look", {"at": "Bergen"}),
    )  # fmt: skip
    ids, mask = conversation_ids(renderer, conversation)
    found = spans(renderer, ids, mask)
    assert [text for marked, text in found if marked] == [
        '\n<tool_call>\n{"name": "look", "arguments": {"at": "Oslo"}}\n</tool_call>'
        '\n<tool_call>\n{"name": "look", "arguments": {"at": "Bergen"}}\n</tool_call><|im_end|>',
        "rain<|im_end|>",
    ]
    assert found[0][1].startswith('<|im_start|>system\n[{"type": "function"'), "the tools are shown"


def test_a_template_of_contents_alone_ends_every_turn_with_eos(make_tokenizer: Callable[..., Any]) -> None:
    renderer = ChatRenderer(make_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}"))
    ids, mask = conversation_ids(renderer, talk(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")))
    assert spans(renderer, ids, mask) == [
        (False, "a"), (True, "b<|im_end|>"), (False, "c"), (True, "d<|im_end|>"),
    ]  # fmt: skip


def test_plain(make_tokenizer: Callable[..., Any]) -> None:
    renderer = PlainRenderer(make_tokenizer())
    ids, mask = conversation_ids(renderer, talk(("user", "2+2="), ("assistant", "4")))
    assert spans(renderer, ids, mask) == [(False, "2+2="), (True, "4<|im_end|>")]
    calls = ChatMessage("assistant", "", (ToolCall("look", {}),))
    with pytest.raises(ValueError, match="plain has no form for tool calls"):
        conversation_ids(renderer, Conversation((ChatMessage("user", "a"), calls)))


@pytest.mark.parametrize("name", ["append_only", "qwen_like", "glm_like"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(
        st.tuples(
            st.lists(st.sampled_from(["user", "tool"]), min_size=1, max_size=3), st.text("helo Pan12\n", max_size=9)
        ),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_the_ids_are_those_of_the_session_in_which_the_answers_were_sampled(
    chat: Chat, name: str, turns: list[tuple[list[Any], str]]
) -> None:
    """An environment appends what was sampled and continues: the same ids, and the marks are what was sampled."""
    renderer = chat(name)
    messages: list[ChatMessage] = []
    ids: list[int] = []
    mask: list[bool] = []
    sampled: list[int] = []
    for number, (roles, answer) in enumerate(turns):
        new = [ChatMessage("user" if number == i == 0 else role, f"m{i}") for i, role in enumerate(roles)]
        context = renderer.continuation_ids(new, sampled=sampled) if number else renderer.prompt_ids(new)
        messages += [*new, ChatMessage("assistant", answer)]
        last = number == len(turns) - 1
        if name == "glm_like":  # the model stops by sampling the marker of whoever speaks next
            speaker = "end" if last else turns[number + 1][0][0]
            following = {"end": "<|endoftext|>", "user": "<|user|>", "tool": "<|observation|>"}[speaker]
        else:
            following = "<|im_end|>"
        text = answer.lstrip("\n") if name == "qwen_like" else answer  # the template strips it
        stop = renderer._tokenizer.token_id(following)
        assert stop is not None
        sampled = [*renderer._tokenizer.encode(text), stop]
        ids += context + sampled
        mask += [False] * len(context) + [True] * len(sampled)
    assert conversation_ids(renderer, Conversation(tuple(messages))) == (ids, mask)


def test_a_template_that_rewrites_the_past_keeps_each_turn_as_it_was_sampled(
    make_tokenizer: Callable[..., Any],
) -> None:
    """Reasoning that the template strips from earlier turns is in the context of later ones, as in a session."""
    template = (
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
        "{{- m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}"
        "{{- '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    renderer = ChatRenderer(make_tokenizer(template))
    ids, mask = conversation_ids(
        renderer, talk(("user", "a"), ("assistant", "why</think>b"), ("user", "c"), ("assistant", "hm</think>d"))
    )
    assert [text for marked, text in spans(renderer, ids, mask) if marked] == [
        "why</think>b<|im_end|>", "hm</think>d<|im_end|>",
    ]  # fmt: skip


def test_a_template_that_does_not_continue_its_opening_is_refused(make_tokenizer: Callable[..., Any]) -> None:
    template = (
        "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
    )
    renderer = ChatRenderer(make_tokenizer(template))
    with pytest.raises(ValueError, match="cannot be told apart"):
        conversation_ids(renderer, talk(("user", "a"), ("assistant", "b")))


@pytest.mark.parametrize(
    ("conversation", "problem"),
    [
        (talk(("user", "a")), "no assistant speaks"),
        (talk(("assistant", "a")), "must follow a message of another role"),
        (talk(("user", "a"), ("assistant", "b"), ("assistant", "c")), "must follow a message of another role"),
    ],
)
def test_conversations_that_are_none(chat: Chat, conversation: Conversation, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        conversation_ids(chat("append_only"), conversation)


def _calling(arguments: str) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": arguments}]}]}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"text": "x"}, r"a list of messages under 'messages', got None; the record has \['text'\]"),
        ({"messages": []}, "a list of messages"),
        ({"messages": ["hi"]}, r"messages\[0\] must be an object with a role of system, user"),
        ({"messages": [{"role": "human", "content": "hi"}]}, r"messages\[0\] must be an object with a role"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]: a message's content must be"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"x": 1}]}]}, r"tool_calls\[0\] must be {name, arguments}"),
        (_calling("{"), r"messages\[0\]\.tool_calls\[0\]\.arguments is no JSON"),
        (_calling("[1]"), "arguments must be a JSON object"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"title": "f"}]}, r"tools\[0\] must be"),
    ],
)  # fmt: skip
def test_records_that_are_no_conversation_are_refused_by_place(record: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        conversation_of(record)


def test_other_field_names() -> None:
    record = {"dialogue": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]}
    found = conversation_of(record, messages_field="dialogue", tools_field="functions")
    assert (found.messages[0].content, found.tools[0].name) == ("a", "f")
