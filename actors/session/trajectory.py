"""The record of one agent session, as tokens: what the policy saw, what it sampled, under which version.

Pure data with its invariants; no I/O, no actor. Environments build a trajectory through `TrajectoryBuilder`,
graders add rewards, the dispatcher groups them and the learner trains on them. Nothing is ever re-tokenised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from headrace.actors.session.task import ChatMessage, SessionSpec

NO_VERSION = -1
"""The version of a token that no engine sampled (prompt, tool output, harness text)."""

FinishReason = Literal["stop", "length", "aborted"]
Ending = Literal["done", "truncated", "context_full", "failed"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation: `token_ids[start:end]` of its trajectory were sampled by an engine in this turn."""

    start: int
    end: int
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """A finished session of T tokens.

    token_ids:  int32[T], prompt, generations and tool outputs in the order in which the policy saw them
    logprobs:   float32[T], log-probability that the engine reported when it sampled the token; 0 where not sampled
    loss_mask:  bool[T], True for tokens that an engine sampled
    versions:   int32[T], version of the weights that sampled the token; NO_VERSION where loss_mask is False
    reward:     None until graded; None after grading means "no reward" (unscorable), which is never 0
    rewards:    the reward's components by name
    """

    spec: SessionSpec
    token_ids: np.ndarray
    logprobs: np.ndarray
    loss_mask: np.ndarray
    versions: np.ndarray
    turns: tuple[Turn, ...]
    messages: tuple[ChatMessage, ...]
    ending: Ending
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.loss_mask), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(
                f"session {self.spec.session_id}: token_ids, logprobs, loss_mask and versions must have one length, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.loss_mask)}, {len(self.versions)}"
            )

    @property
    def num_trained_tokens(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    @property
    def oldest_version(self) -> int:
        """The version of the oldest trained token; NO_VERSION if there is none."""
        sampled = self.versions[self.loss_mask]
        return int(sampled.min()) if len(sampled) else NO_VERSION

    def without_older(self, version: int) -> Trajectory:
        """A copy in which tokens of versions before `version` are context: seen, not trained."""
        older = self.loss_mask & (self.versions < version)
        if not older.any():
            return self
        return replace(
            self,
            loss_mask=self.loss_mask & ~older,
            logprobs=np.where(older, np.float32(0.0), self.logprobs),
            versions=np.where(older, np.int32(NO_VERSION), self.versions),
        )

    def problem(self) -> str | None:
        """Why this trajectory must not reach a loss (a name for the counter), or None."""
        if not self.loss_mask.any():
            return "no_sampled_tokens"
        if not np.isfinite(self.logprobs[self.loss_mask]).all():
            return "logprob_not_finite"
        if (self.logprobs[self.loss_mask] > 1e-3).any():
            return "logprob_positive"
        if (self.versions[self.loss_mask] < 0).any():
            return "version_missing"
        return None

    def graded(
        self, reward: float | None, rewards: dict[str, float], notes: dict[str, str] | None = None, **timings_s: float
    ) -> Trajectory:
        """A copy with its reward."""
        return replace(
            self,
            reward=reward,
            rewards=dict(rewards),
            notes={**self.notes, **(notes or {})},
            timings_s={**self.timings_s, **timings_s},
        )


class TrajectoryBuilder:
    """Grows one trajectory turn by turn; every earlier token stays exactly as it was seen or sampled."""

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._loss_mask: list[bool] = []
        self._versions: list[int] = []
        self._turns: list[Turn] = []

    def __len__(self) -> int:
        return len(self._token_ids)

    @property
    def token_ids(self) -> np.ndarray:
        """int32[T]: the prompt of the next generation."""
        return np.asarray(self._token_ids, dtype=np.int32)

    def add_context(self, token_ids: np.ndarray | list[int]) -> None:
        """Append tokens that no engine sampled (prompt, tool output, template glue)."""
        ids = [int(i) for i in token_ids]
        self._token_ids += ids
        self._logprobs += [0.0] * len(ids)
        self._loss_mask += [False] * len(ids)
        self._versions += [NO_VERSION] * len(ids)

    def add_generation(
        self, token_ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray, finish_reason: FinishReason
    ) -> None:
        """Append one generation. int32[N], float32[N], int32[N]. Raises ValueError where the lengths differ."""
        if not len(token_ids) == len(logprobs) == len(versions):
            raise ValueError(
                f"session {self._spec.session_id}: the engine returned {len(token_ids)} tokens, {len(logprobs)} "
                f"log-probs and {len(versions)} versions; it must return one of each for every token"
            )
        start = len(self._token_ids)
        self._token_ids += [int(i) for i in token_ids]
        self._logprobs += [float(p) for p in logprobs]
        self._loss_mask += [True] * len(token_ids)
        self._versions += [int(v) for v in versions]
        self._turns.append(Turn(start, len(self._token_ids), finish_reason))

    def build(
        self, *, messages: tuple[ChatMessage, ...], ending: Ending, timings_s: dict[str, float], notes: dict[str, str]
    ) -> Trajectory:
        return Trajectory(
            spec=self._spec,
            token_ids=np.asarray(self._token_ids, dtype=np.int32),
            logprobs=np.asarray(self._logprobs, dtype=np.float32),
            loss_mask=np.asarray(self._loss_mask, dtype=np.bool_),
            versions=np.asarray(self._versions, dtype=np.int32),
            turns=tuple(self._turns),
            messages=messages,
            ending=ending,
            timings_s=timings_s,
            notes=notes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The graded sessions of one task that share a baseline; the key is `group_id`, never the prompt."""

    group_id: str
    trajectories: tuple[Trajectory, ...]
