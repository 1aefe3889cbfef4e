"""Streaming text never shows half a character."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.environment.rendering import IncrementalDecoder


def test_an_emoji_appears_whole(tokenizer):
    """cases C74: vllm-project/vllm#6626: four byte tokens are one character."""
    decoder = IncrementalDecoder(tokenizer.decode)
    ids = tokenizer.encode("\N{GRINNING FACE}")
    assert [decoder.push(i) for i in ids] == ["", "", "", "\N{GRINNING FACE}"]
    assert decoder.finish() == ""


def test_half_a_character_is_shown_at_the_end_only(tokenizer):
    decoder = IncrementalDecoder(tokenizer.decode)
    ids = tokenizer.encode("\N{GRINNING FACE}")[:2]
    assert [decoder.push(i) for i in ids] == ["", ""]
    assert decoder.finish() == tokenizer.decode(ids)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 267), max_size=30))
def test_the_pieces_are_the_whole(tokenizer, ids: list[int]):
    """Any ids, broken characters and special tokens included."""
    decoder = IncrementalDecoder(tokenizer.decode)
    assert "".join([*(decoder.push(i) for i in ids), decoder.finish()]) == tokenizer.decode(ids)
