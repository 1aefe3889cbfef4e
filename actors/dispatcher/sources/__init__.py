"""Where tasks come from: the built-in task sources. Each is a class of the protocol in source.py, named by `_target_`
in a config."""

from headrace.actors.dispatcher.sources.held_out_prompts import HeldOutPrompts
from headrace.actors.dispatcher.sources.json_lines_source import JsonLinesSource
from headrace.actors.dispatcher.sources.reasoning_gym_source import ReasoningGymSource

__all__ = ["HeldOutPrompts", "JsonLinesSource", "ReasoningGymSource"]
