"""One evaluation of one version: held-out prompts, k samples at temperature and a greedy one each. Pure state machine.

Evaluation sessions stand apart from the training ledger. They go to generators that hold the version for as long as
the evaluation lasts, so training goes on. A session without a reward is missing, never 0: it lowers n and is counted
in `missing`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.actors.dispatcher.evaluation_figures import PromptRewards, figures
from headrace.actors.dispatcher.seeds import session_seed
from headrace.actors.dispatcher.settings import check_at_least
from headrace.actors.session import Sampling, SessionSpec, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """`enabled` False, or `num_prompts` 0: none is made. `samples` at `temperature` for each prompt, one `greedy` more;
    `pass_at`: each k of which pass@k is told, which needs k samples; None: 1, 2, 4, … up to `samples`. A sample with
    `pass_reward` or more has passed. `every_steps` optimizer steps; `role` serves them and holds one version meanwhile;
    `max_in_flight` environment slots at most; past `timeout_s` what is not graded counts as missing. `max_attempts` and
    `max_losses`: as in training; a session that meets either is missing."""

    enabled: bool = True
    num_prompts: int = 64
    samples: int = 8
    temperature: float = 1.0
    pass_at: Sequence[int] | None = None
    greedy: bool = True
    every_steps: int = 50
    role: str = "evaluator"
    max_in_flight: int = 64
    max_attempts: int = 3
    max_losses: int = 20
    pass_reward: float = 1.0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_at_least("evaluation.num_prompts", self.num_prompts, 0)
        check_at_least("evaluation.samples", self.samples, 0)
        check_at_least("evaluation.every_steps", self.every_steps, 1)
        check_at_least("evaluation.max_in_flight", self.max_in_flight, 1)
        check_at_least("evaluation.max_attempts", self.max_attempts, 1)
        check_at_least("evaluation.max_losses", self.max_losses, 1)
        if self.num_prompts and not self.samples and not self.greedy:
            raise ValueError("an evaluation needs samples >= 1 or greedy=true; num_prompts=0 switches it off")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"evaluation.temperature must be > 0, got {self.temperature}; greedy=true samples at 0 besides"
            )
        if not all(1 <= k <= self.samples for k in self.pass_at or ()):
            raise ValueError(
                f"evaluation.pass_at must be numbers from 1 to evaluation.samples ({self.samples}), got "
                f"{list(self.pass_at or ())}; raise evaluation.samples, or leave it null"
            )

    @property
    def is_made(self) -> bool:
        return self.enabled and self.num_prompts > 0

    @property
    def pass_ks(self) -> tuple[int, ...]:
        """Each k of which pass@k is told."""
        if self.pass_at is not None:
            return tuple(sorted(set(self.pass_at)))
        return tuple(1 << i for i in range(self.samples.bit_length()) if 1 << i <= self.samples)


class EvaluationSchedule:
    """When to evaluate: at the first version, at every `every_steps` optimizer steps, and at the end. One at a time:
    what falls due while one runs becomes a single evaluation of the newest version."""

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps
        self._next_due = 0
        self.due = False

    def served(self, step: int) -> bool:
        """A version with this step is served. Returns whether an evaluation is due."""
        if step >= self._next_due:
            self.due = True
            self._next_due = self._after(step)
        return self.due

    def begin(self, step: int) -> None:
        """An evaluation of a version with this step begins."""
        self.due = False
        self._next_due = max(self._next_due, self._after(step))

    def roll_back(self, step: int) -> None:
        """The learner goes on from an earlier step: what falls due after it is evaluated again."""
        self._next_due = min(self._next_due, self._after(step))

    @property
    def next_due(self) -> int:
        return self._next_due

    def restore(self, *, due: bool, next_due: int) -> None:
        self.due, self._next_due = due, next_due

    def _after(self, step: int) -> int:
        return (step // self._every_steps + 1) * self._every_steps


class Evaluation:
    """`version` with `step` optimizer steps, on `tasks`. `edition`: sessions of an evaluation that is made again
    are others, with the same seeds."""

    def __init__(
        self,
        settings: EvaluationSettings,
        tasks: list[Task],
        *,
        version: int,
        step: int,
        max_tokens: int,
        seed: int,
        edition: int = 0,
    ) -> None:
        self.settings = settings
        self.version = version
        self.step = step
        self._edition = edition
        self.num_off_version = 0
        """sessions with a token that another version sampled: 0 where the role really holds its version"""
        self.num_missing = 0
        self._attempts: dict[str, SessionSpec] = {}
        self._losses: Counter[str] = Counter()
        self._waiting: deque[str] = deque()
        self._running: dict[str, str] = {}
        self._seated: set[str] = set()
        self._prompts = [PromptRewards(task.source) for task in tasks]
        self._prompt_of: dict[str, int] = {}
        for prompt, task in enumerate(tasks):
            for spec in self._specs(prompt, task, max_tokens, seed):
                self._attempts[spec.session_id] = spec
                self._prompt_of[spec.session_id] = prompt
                self._waiting.append(spec.session_id)
        self.num_sessions = len(self._attempts)

    def _specs(self, prompt: int, task: Task, max_tokens: int, seed: int) -> list[SessionSpec]:
        again = f"r{self._edition}" if self._edition else ""
        group_id = f"e{self.version:06d}{again}-{prompt:04d}"
        temperature = self.settings.temperature
        members = [
            (member, Sampling(temperature, max_tokens, seed=session_seed(seed, "eval", self.version, prompt, member)))
            for member in range(self.settings.samples)
        ]
        if self.settings.greedy:
            members.append((self.settings.samples, Sampling(0.0, max_tokens)))
        return [
            SessionSpec(f"{group_id}-{member:02d}", group_id, member, "eval", task, sampling, self.settings.role)
            for member, sampling in members
        ]

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._attempts

    @property
    def complete(self) -> bool:
        return not self._attempts

    @property
    def num_open(self) -> int:
        return len(self._attempts)

    @property
    def num_seated(self) -> int:
        """Sessions in an environment's slot."""
        return len(self._seated)

    def open_ids(self) -> list[str]:
        return list(self._attempts)

    def next_session(self) -> SessionSpec | None:
        """The next session to place, or None where all are under way or `max_in_flight` are."""
        if len(self._running) >= self.settings.max_in_flight:
            return None
        while self._waiting:
            spec = self._attempts.get(self._waiting[0])
            if spec is not None and spec.session_id not in self._running:
                return spec
            self._waiting.popleft()
        return None

    def started(self, session_id: str, environment: str) -> None:
        self._running[session_id] = environment
        self._seated.add(session_id)

    def moved(self, session_id: str, attempt: int, grader: str) -> None:
        """A grader owns that attempt now."""
        if session_id in self._running and self.attempt_of(session_id) == attempt:
            self._running[session_id] = grader
            self._seated.discard(session_id)

    def held_by(self, actor: str) -> list[str]:
        """The open sessions that an actor owns."""
        return [session_id for session_id, holder in self._running.items() if holder == actor]

    def not_started(self, session_id: str) -> None:
        """Refused before it began: waits again."""
        if session_id in self._attempts and session_id in self._running:
            self._leaves(session_id)
            self._waiting.appendleft(session_id)

    def graded(self, trajectory: Trajectory) -> None:
        """Idempotent by session id."""
        spec = self._end(trajectory.spec.session_id)
        if spec is None:
            return
        sampled = trajectory.versions[trajectory.loss_mask]
        self.num_off_version += bool((sampled != self.version).any())
        if trajectory.reward is None:
            self.num_missing += 1
            return
        prompt = self._prompts[self._prompt_of[spec.session_id]]
        (prompt.greedy if spec.member == self.settings.samples else prompt.samples).append(trajectory.reward)

    def failed(self, session_id: str, attempt: int, *, lost: bool = False) -> None:
        """Tried again up to `max_attempts`, or where they are `lost` with their holder `max_losses`; then missing."""
        spec = self._attempts.get(session_id)
        if spec is None or spec.attempt != attempt:
            return
        self._losses[session_id] += lost
        losses = self._losses[session_id]
        if losses < self.settings.max_losses and attempt + 1 - losses < self.settings.max_attempts:
            self._attempts[session_id] = replace(spec, attempt=attempt + 1)
            self._leaves(session_id)
            self._waiting.append(session_id)
            return
        self._end(session_id)
        self.num_missing += 1

    def attempt_of(self, session_id: str) -> int | None:
        spec = self._attempts.get(session_id)
        return None if spec is None else spec.attempt

    def abandon(self) -> list[tuple[str, int]]:
        """Give up on what is open (it counts as missing). Returns it, as (session id, attempt)."""
        given_up = [(session_id, spec.attempt) for session_id, spec in self._attempts.items()]
        for session_id, _ in given_up:
            self._end(session_id)
        self.num_missing += len(given_up)
        return given_up

    def _end(self, session_id: str) -> SessionSpec | None:
        self._leaves(session_id)
        return self._attempts.pop(session_id, None)

    def _leaves(self, session_id: str) -> None:
        self._running.pop(session_id, None)
        self._seated.discard(session_id)

    def values(self) -> dict[str, float]:
        """The results as metric values: see `figures`; and `step`, `prompts`, `sessions`, `missing` of them,
        `off_version`."""
        return {
            "step": float(self.step),
            "prompts": float(len(self._prompts)),
            "sessions": float(self.num_sessions),
            "missing": float(self.num_missing),
            "off_version": float(self.num_off_version),
            **figures(self._prompts, self.settings.pass_ks, self.settings.pass_reward),
        }
