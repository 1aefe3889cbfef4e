"""Chat rendering by difference: what stands between two turns, for three kinds of templates."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from headrace.actors.rendering import ChatRenderer
from headrace.actors.rendering.chat_template import ChatTemplate, plain_content
from headrace.actors.session import ChatMessage, Tool

USER = ChatMessage("user", "2+2?")
TOOL = ChatMessage("tool", "hello 12")


@pytest.fixture
def full_ids(make_tokenizer):
    """The ids of a whole conversation rendered at once, as a server would."""

    def render(template: str, messages: list[ChatMessage]) -> list[int]:
        text = ChatTemplate(template, {}).render(messages, (), generation_prompt=True)
        return make_tokenizer().encode(text)

    return render


def test_the_newline_after_the_stop_token_appears_exactly_once(chat, tokenizer, full_ids):
    """cases C56: huggingface/trl#5317, verl-project/verl#6501."""
    renderer = chat("qwen_like")
    prompt = renderer.prompt_ids([USER])
    sampled = [*tokenizer.encode("Pan"), 266]
    suffix = renderer.continuation_ids([TOOL, TOOL], sampled=sampled)
    whole = [*prompt, *sampled, *suffix]
    assert whole == full_ids(renderer._tokenizer.chat_template, [USER, ChatMessage("assistant", "Pan"), TOOL, TOOL])
    assert tokenizer.decode(suffix, special_tokens=True).startswith("\n<|im_start|>user\n<tool_response>")


def test_a_turn_without_its_stop_token_is_closed_by_the_template(chat, tokenizer):
    renderer = chat("qwen_like")
    suffix = renderer.continuation_ids([TOOL], sampled=tokenizer.encode("Pan"))
    assert tokenizer.decode(suffix, special_tokens=True).startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_stop_token_that_the_template_does_not_write_is_kept_and_the_turn_closed(make_tokenizer, chat):
    renderer = ChatRenderer(make_tokenizer(chat("qwen_like")._tokenizer.chat_template), stop_tokens=["<|endoftext|>"])
    assert 267 in renderer.stop_token_ids
    assert renderer.continuation_ids([TOOL], sampled=[259, 267])[0] == 266


def test_a_role_marker_that_was_sampled_is_not_written_again(chat, tokenizer):
    """cases C65: THUDM/slime#1490: the stop token is the next role's marker."""
    renderer = chat("glm_like")
    observation = tokenizer.token_id("<|observation|>")
    assert set(renderer.stop_token_ids) == {267, tokenizer.token_id("<|user|>"), observation}
    prompt = renderer.prompt_ids([USER])
    sampled = [*tokenizer.encode("hello"), observation]
    whole = [*prompt, *sampled, *renderer.continuation_ids([TOOL], sampled=sampled)]
    assert whole.count(observation) == 1
    text = tokenizer.decode(whole, special_tokens=True)
    assert text == "<|user|>\n2+2?<|assistant|>\nhello<|observation|>\nhello 12<|assistant|>\n"


def test_reasoning_stays_as_the_engine_saw_it(chat, tokenizer):
    """cases C58: verl-project/verl#6854: the template strips past reasoning, the record must not."""
    renderer = chat("qwen_like")
    ids = renderer.prompt_ids([USER])
    thoughts = ["<think>\nhm\n</think>\n\n4", "<think>\nagain\n</think>\n\n5", "<think>\nlast\n</think>\n\n6"]
    for turn, thought in enumerate(thoughts):
        sampled = [*tokenizer.encode(thought), 266]
        before = list(ids)
        ids += sampled
        if turn < 2:
            ids += renderer.continuation_ids([USER], sampled=sampled)
        assert ids[: len(before)] == before
    text = tokenizer.decode(ids, special_tokens=True)
    assert all(text.count(thought) == 1 for thought in thoughts)
    assert text.count("<think>") == 3


def test_a_thinking_tag_in_the_prompt_is_not_doubled(make_tokenizer, chat, tokenizer):
    """cases C59: huggingface/trl#6361."""
    template = chat("append_only")._tokenizer.chat_template.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")
    renderer = ChatRenderer(make_tokenizer(template))
    prompt = renderer.prompt_ids([USER])
    assert tokenizer.decode(prompt, special_tokens=True).endswith("assistant\n<think>\n")
    sampled = [*tokenizer.encode("2+2 equals 4.\n</think>\n\nThe answer is 4."), 266]
    history = [*prompt, *sampled, *renderer.continuation_ids([USER], sampled=sampled)]
    assert history[len(prompt) : len(prompt) + len(sampled)] == sampled
    text = tokenizer.decode(history, special_tokens=True)
    assert text.count("<think>") == 2  # one a turn: the first prompt's and the next generation's
    assert text.count("</think>") == 1


@pytest.mark.parametrize("template_has_bos", [True, False])
@pytest.mark.parametrize("tokenizer_adds_bos", [True, False])
def test_exactly_one_bos(make_tokenizer, chat, template_has_bos: bool, tokenizer_adds_bos: bool):
    """cases C62: huggingface/trl#3853."""
    template = ("{{ bos_token }}" if template_has_bos else "") + chat("append_only")._tokenizer.chat_template
    tokenizer = make_tokenizer(template, bos_token="<|endoftext|>")
    if tokenizer_adds_bos:
        tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 267)]
        )
    ids = ChatRenderer(tokenizer).prompt_ids([USER])
    assert ids.count(267) == int(template_has_bos or tokenizer_adds_bos)
    if template_has_bos or tokenizer_adds_bos:
        assert ids[0] == 267
    assert ChatRenderer(tokenizer, add_bos=True).prompt_ids([USER]).count(267) == 1


def test_both_forms_of_content_render_alike(chat):
    """cases C67: marin-community/marin#9103: a string, or a list of text parts."""
    renderer = chat("qwen_like")
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    assert renderer.prompt_ids([ChatMessage("user", parts)]) == renderer.prompt_ids([USER])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="content part"):
        plain_content([{"type": "image", "url": "x"}])


def test_tools_reach_the_template(make_tokenizer):
    template = "{% if tools %}{{ tools[0].function.name }}|{{ tools | tojson }}{% endif %}{{ messages[0].content }}"
    template += "{% for m in messages[1:] %}{{ m.content }}{% endfor %}"
    renderer = ChatRenderer(make_tokenizer(template))
    tool = Tool("add", "<adds>", {"type": "object"})
    text = renderer.text(renderer.prompt_ids([USER], [tool]))
    assert text.startswith("add|[{")
    assert "<adds>" in text  # not escaped as HTML


def test_a_tool_output_may_hold_the_made_up_answer(chat, tokenizer):
    renderer = chat("append_only")
    hostile = ChatMessage("tool", "HEADRACE-MADE-UP-ANSWER")
    text = tokenizer.decode(renderer.continuation_ids([hostile], sampled=[259, 266]), special_tokens=True)
    assert text == "\n<|im_start|>tool\nHEADRACE-MADE-UP-ANSWER<|im_end|>\n<|im_start|>assistant\n"


def test_generation_blocks_are_only_rendered(make_tokenizer):
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    renderer = ChatRenderer(make_tokenizer(template))
    assert renderer.text(renderer.prompt_ids([USER])) == "2+2?;"


def test_a_folder_without_template_is_refused(make_tokenizer):
    with pytest.raises(ValueError, match="no chat template"):
        ChatRenderer(make_tokenizer(None))
    with pytest.raises(ValueError, match="stop_tokens"):
        ChatRenderer(make_tokenizer("{{ messages[0].content }}HEADRACE-MADE-UP-ANSWER"), stop_tokens=["<nope>"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(st.text(max_size=20), min_size=2, max_size=4), answer=st.text(max_size=20))
def test_append_only_templates_give_the_full_render(chat, tokenizer, contents: list[str], answer: str):
    """For a template that never looks back, prompt + turn + glue is the whole conversation rendered at once."""
    renderer = chat("append_only")
    messages = [ChatMessage("user", content) for content in contents]
    ids = [*renderer.prompt_ids(messages[:1])]
    ids += [*tokenizer.encode(answer), 266]
    ids += renderer.continuation_ids(messages[1:], sampled=ids)
    conversation = [messages[0], ChatMessage("assistant", answer), *messages[1:]]
    whole = ChatTemplate(renderer._tokenizer.chat_template, {}).render(conversation, (), generation_prompt=True)
    assert tokenizer.decode(ids, special_tokens=True) == whole
