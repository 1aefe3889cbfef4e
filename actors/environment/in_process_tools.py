"""A multi-turn environment whose tools are Python objects, called in threads with a deadline.

For trusted tools only: a thread is no sandbox. The session ends when the assistant answers without calling a tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from headrace.actors.environment.daemon_thread import run_in_daemon_thread
from headrace.actors.environment.environment import Observation, StepOutcome
from headrace.actors.environment.single_turn import with_system
from headrace.actors.session import ChatMessage, Task, Tool, ToolCall


class PythonTool(Protocol):
    """A plug-in. One instance serves all sessions of an actor, from several threads: it keeps no state of a session."""

    @property
    def tool(self) -> Tool:
        """What the model is told."""

    def call(self, arguments: dict[str, object], task: Task) -> str:
        """The output that the model sees. May raise: the model sees the error's text."""


class InProcessTools:
    """`call_timeout_s` is for one call; calls of one turn run at the same time. Longer outputs than `max_output_chars`
    are cut with a notice."""

    def __init__(
        self,
        *,
        tools: Sequence[PythonTool],
        system: str | None = None,
        call_timeout_s: float = 10.0,
        max_output_chars: int = 4000,
    ) -> None:
        names = [plugin.tool.name for plugin in tools]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"tools must be one or more tools with distinct names, got {names}")
        self._plugins = {plugin.tool.name: plugin for plugin in tools}
        self._system = system
        self._call_timeout_s = call_timeout_s
        self._max_output_chars = max_output_chars
        self._task: Task | None = None

    async def reset(self, task: Task) -> Observation:
        self._task = task
        tools = tuple(plugin.tool for plugin in self._plugins.values())
        return Observation(with_system(self._system, task.prompt), tools)

    async def step(self, turn: ChatMessage) -> StepOutcome:
        if not turn.tool_calls:
            return StepOutcome()
        outputs = await asyncio.gather(*(self._output(call) for call in turn.tool_calls))
        return StepOutcome(tuple(ChatMessage("tool", output) for output in outputs), done=False)

    async def close(self) -> None:
        """Nothing is held: a call that hangs ends with its daemon thread."""

    async def _output(self, call: ToolCall) -> str:
        if self._task is None:
            raise RuntimeError("step before reset")
        plugin = self._plugins[call.name]
        try:
            output = await asyncio.wait_for(
                run_in_daemon_thread(plugin.call, call.arguments, self._task), self._call_timeout_s
            )
        except TimeoutError:
            return f"{call.name} did not answer within {self._call_timeout_s:g} s"
        except Exception as error:  # a tool's failure is something the model sees and can react to
            output = f"{call.name} failed: {type(error).__name__}: {error}"
        return self._shortened(str(output))

    def _shortened(self, output: str) -> str:
        limit = self._max_output_chars
        return output if len(output) <= limit else f"{output[:limit]}\n(the first {limit} of {len(output)} characters)"
