"""What a run asks of its training sessions, checked. Pure values; the dispatcher's constructor makes one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.actors.dispatcher.buffer import Consumption, OverAge

Mode = Literal["async", "sync"]
ZeroVariance = Literal["drop", "keep"]


def check_choice(name: str, value: object, literal: object) -> None:
    allowed = get_args(literal)
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_at_least(name: str, value: float, least: float) -> None:
    if not value >= least:  # nan is not
        raise ValueError(f"{name} must be >= {least}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """`batch_sessions`: sessions of one optimizer step; `hard_lag_versions`: what is older when it would be trained
    meets `over_age`. In sync mode both lag limits are 0, whatever is given. `max_attempts`: of a session, that failed
    by themselves; `max_losses`: that were lost with whoever had them. Beyond either its task is quarantined.
    `group_extra`: sessions issued beyond `group_size`; the first `group_size` that are graded make the group.
    `group_deadline_s`: that long after its issue a group goes on with what is graded, two at least; None waits for
    all."""

    group_size: int
    batch_sessions: int
    max_lag_versions: int
    hard_lag_versions: int | None = None
    over_age: OverAge = "drop"
    consumption: Consumption = "oldest_ready"
    zero_variance: ZeroVariance = "drop"
    mode: Mode = "async"
    max_attempts: int = 3
    max_losses: int = 20
    group_extra: int = 0
    group_deadline_s: float | None = None
    pass_reward: float = 1.0
    temperature: float = 1.0
    max_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, Mode)
        check_choice("over_age", self.over_age, OverAge)
        check_choice("consumption", self.consumption, Consumption)
        check_choice("zero_variance", self.zero_variance, ZeroVariance)
        check_at_least("group_size", self.group_size, 1)
        check_at_least("max_attempts", self.max_attempts, 1)
        check_at_least("max_losses", self.max_losses, 1)
        check_at_least("group_extra", self.group_extra, 0)
        if self.group_deadline_s is not None and not self.group_deadline_s > 0:
            raise ValueError(f"group_deadline_s must be > 0 or null, got {self.group_deadline_s}; null waits for all")
        check_at_least("max_tokens", self.max_tokens, 1)
        check_at_least("max_lag_versions", self.max_lag_versions, 0)
        if self.batch_sessions < self.group_size or self.batch_sessions % self.group_size:
            raise ValueError(
                f"batch_sessions must be a multiple of group_size ({self.group_size}), got {self.batch_sessions}; "
                f"a batch is whole groups: use {max(1, round(self.batch_sessions / self.group_size)) * self.group_size}"
            )
        if self.hard_lag_versions is not None and self.hard_lag_versions < self.max_lag_versions:
            raise ValueError(
                f"hard_lag_versions ({self.hard_lag_versions}) must be >= max_lag_versions ({self.max_lag_versions}): "
                "admission lets sessions become that old; leave it null for max(1, 3 * max_lag_versions)"
            )
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature of training sessions must be finite and > 0, got {self.temperature}; "
                "only evaluation is greedy"
            )

    @property
    def issued_per_group(self) -> int:
        return self.group_size + self.group_extra

    @property
    def max_lag(self) -> int:
        return 0 if self.mode == "sync" else self.max_lag_versions

    @property
    def hard_lag(self) -> int:
        if self.mode == "sync":
            return 0
        return max(1, 3 * self.max_lag_versions) if self.hard_lag_versions is None else self.hard_lag_versions
