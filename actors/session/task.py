"""What a session is asked to do: a task, how to sample, and the session's identity. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["train", "eval"]
Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that was parsed out of an assistant's tokens. `arguments` is a JSON object."""

    name: str
    arguments: dict[str, object]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model sees it. `parameters` is a JSON schema (type object)."""

    name: str
    description: str
    parameters: dict[str, object]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `entry` holds what its grader needs (JSON values only; never shown to the policy)."""

    task_id: str
    source: str
    prompt: tuple[ChatMessage, ...]
    answer: str | None = None
    entry: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an engine samples one turn. temperature 0 is greedy. top-p, top-k and min-p do not exist in training
    sessions: an engine's processed log-probs are renormalised by them and the learner's are not.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    """per turn"""
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"sampling.temperature must be >= 0, got {self.temperature}; 0 is greedy")
        if self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens must be >= 1, got {self.max_tokens}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p must be in (0, 1], got {self.top_p}")


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session to run. `member` numbers the sessions of a group; `attempt` the re-issues of a lost one.
    `generators` is the role that serves it: "generator" for training, "evaluator" for a pinned evaluation.
    """

    session_id: str
    group_id: str
    member: int
    purpose: Purpose
    task: Task
    sampling: Sampling
    generators: str = "generator"
    attempt: int = 0
