"""Rendering without a template."""

from __future__ import annotations

import pytest

from headrace.actors.rendering import ChatRenderer, PlainRenderer, before_stop, load_renderer
from headrace.actors.session import ChatMessage

MESSAGES = [ChatMessage("system", "hel"), ChatMessage("user", "lo")]


def test_messages_stand_one_after_another(tokenizer):
    renderer = PlainRenderer(tokenizer)
    assert renderer.prompt_ids(MESSAGES) == [259]
    assert renderer.continuation_ids(MESSAGES, sampled=[266]) == [259]
    assert renderer.stop_token_ids == (266,)


def test_bos_where_it_is_asked_for(make_tokenizer):
    assert PlainRenderer(make_tokenizer(bos_token="<|endoftext|>"), add_bos=True).prompt_ids(MESSAGES) == [267, 259]
    assert PlainRenderer(make_tokenizer(bos_token="<|endoftext|>")).prompt_ids(MESSAGES) == [259]
    with pytest.raises(ValueError, match="bos_token"):
        PlainRenderer(make_tokenizer(), add_bos=True)


def test_auto_takes_the_template_where_there_is_one(model_folder):
    assert isinstance(load_renderer("auto", str(model_folder)), ChatRenderer)
    assert isinstance(load_renderer("plain", str(model_folder)), PlainRenderer)
    (model_folder / "chat_template.jinja").unlink()
    assert isinstance(load_renderer("auto", str(model_folder)), PlainRenderer)
    assert isinstance(load_renderer(PlainRenderer, str(model_folder)), PlainRenderer)


def test_what_was_said_ends_before_the_first_stop_token():
    assert before_stop([5, 6, 266, 7], (266,)) == [5, 6]
    assert before_stop([5, 6], (266,)) == [5, 6]
    assert before_stop([], (266,)) == []
