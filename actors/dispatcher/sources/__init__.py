"""Where tasks come from: the built-in task sources. Each is a class of the protocol in source.py, named by `_target_`
in a config."""

from headrace.actors.dispatcher.sources.held_out_prompts import HeldOutPrompts
from headrace.actors.dispatcher.sources.reasoning_gym_source import ReasoningGymSource
from headrace.actors.dispatcher.sources.record_source import JsonLinesSource, RecordSource

__all__ = ["HeldOutPrompts", "JsonLinesSource", "ReasoningGymSource", "RecordSource"]
