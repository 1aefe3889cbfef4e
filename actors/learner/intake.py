"""From the groups of a batch to sequences with advantages: the gate through which everything trained must pass.

A missing reward is missing, never 0: its trajectory gets no advantage, shifts nobody's baseline, and its tokens leave
the loss. Nothing that is not finite passes. Every trajectory that is turned away is counted under a name. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from headrace.actors.learner.advantages.protocol import Advantage, BatchRewards
from headrace.actors.learner.figures.lag import token_lags
from headrace.actors.learner.penalties.protocol import RewardPenalty
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.session import Group, Trajectory

NO_PENALTIES: Mapping[str, RewardPenalty] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """A trajectory that may be trained, its group by number, and its reward with the penalties taken off."""

    trajectory: Trajectory
    group: int
    reward: float


@dataclass(frozen=True, slots=True, eq=False)
class Intake:
    """`sequences` may be empty: then there is nothing to learn from this batch and no optimizer step is taken.

    session_ids: of the sequences, in their order
    refused:     trajectories turned away, by reason
    rewards:     float64[K], the finite rewards of the batch, refused trajectories left out
    dead_groups: groups of equal rewards, by kind: "all_pass" (>= 1), "all_fail" (<= 0), "all_equal" (between);
                 with penalties taken off
    penalties:   mean of what each took off a reward
    endings:     of all trajectories, refused ones too
    num_failed:  attempts that ended without a trajectory meanwhile
    """

    sequences: tuple[TrainSequence, ...]
    session_ids: tuple[str, ...]
    refused: Counter[str]
    rewards: np.ndarray
    num_groups: int
    dead_groups: Counter[str]
    penalties: Mapping[str, float] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)
    num_failed: int = 0

    def figures(self) -> dict[str, float]:
        """For the monitor. Rewards are absent, not 0, where the batch has none."""
        values = {
            "intake/groups": float(self.num_groups),
            "intake/refused": float(self.refused.total()),
            **{f"intake/refused_{reason}": float(count) for reason, count in self.refused.items()},
            **{
                f"intake/groups_{kind}": float(self.dead_groups[kind]) for kind in ("all_pass", "all_fail", "all_equal")
            },
        }
        values |= {f"penalty/{name}": value for name, value in self.penalties.items()}
        if self.endings:
            num_ended = self.endings.total()
            num_failed = self.endings["failed"] + self.num_failed
            num_cut = self.endings["truncated"] + self.endings["context_full"]
            values["intake/truncated_fraction"] = num_cut / num_ended
            values["intake/errored_fraction"] = num_failed / (num_ended + self.num_failed)
        if len(self.rewards):
            values["reward/mean"] = float(self.rewards.mean())
            values["reward/std"] = float(self.rewards.std())
        return values


def take_in(
    groups: Iterable[Group],
    advantage: Advantage,
    *,
    penalties: Mapping[str, RewardPenalty] = NO_PENALTIES,
    version_steps: Mapping[int, int] | None = None,
    steps_done: int = 0,
    num_failed: int = 0,
) -> Intake:
    """Advantages are computed inside each group as it was handed out: by its id, never by its prompt. `penalties` are
    taken off the rewards before. version_steps: the optimizer step that each version holds; None: everything was
    sampled by the weights that are trained. num_failed: see Intake."""
    fit: list[_Fit] = []
    refused: Counter[str] = Counter()
    rewards: list[float] = []
    taken: dict[str, list[float]] = {name: [] for name in penalties}
    endings: Counter[str] = Counter()
    num_groups = 0
    for number, group in enumerate(groups):
        num_groups += 1
        members: list[_Fit] = []
        for trajectory in group.trajectories:
            endings[trajectory.ending] += 1
            reason = refusal(trajectory)
            if reason is None and trajectory.reward is not None:
                penalty = {name: rule(trajectory) for name, rule in penalties.items()}
                members.append(_Fit(trajectory, number, trajectory.reward - sum(penalty.values())))
                for name, value in penalty.items():
                    taken[name].append(value)
                rewards.append(trajectory.reward)
            else:
                refused[reason or "reward_missing"] += 1
        if len(members) < max(advantage.min_rewards, 1):
            refused["group_too_small"] += len(members)
        elif not np.isfinite([member.reward for member in members]).all():
            refused["penalty_not_finite"] += len(members)
        else:
            fit += members
    advantages_S, dead_groups = _advantages(fit, advantage)
    kept = [(member, float(a)) for member, a in zip(fit, advantages_S, strict=True) if np.isfinite(a)]
    if len(kept) < len(fit):
        refused["advantage_not_finite"] = len(fit) - len(kept)
    return Intake(
        sequences=tuple(_sequence(member, a, version_steps, steps_done) for member, a in kept),
        session_ids=tuple(member.trajectory.spec.session_id for member, _ in kept),
        refused=refused,
        rewards=np.array(rewards, dtype=np.float64),
        num_groups=num_groups,
        dead_groups=dead_groups,
        penalties={name: float(np.mean(values)) for name, values in taken.items() if values},
        endings=endings,
        num_failed=num_failed,
    )


def _advantages(fit: Sequence[_Fit], advantage: Advantage) -> tuple[np.ndarray, Counter[str]]:
    """float64[S], and the dead groups, whose advantages are exactly 0 where they have a baseline of siblings."""
    dead_groups: Counter[str] = Counter()
    if not fit:
        return np.zeros(0), dead_groups
    _, group_S = np.unique([member.group for member in fit], return_inverse=True)
    rewards_S = np.array([member.reward for member in fit], dtype=np.float64)
    classes_S = tuple(member.trajectory.spec.task.source for member in fit)
    advantages_S = advantage(BatchRewards(rewards_S, group_S, classes_S))
    if advantage.min_rewards > 1:
        for group in range(int(group_S.max()) + 1):
            kind = dead_kind(rewards_S[group_S == group])
            if kind is not None:
                dead_groups[kind] += 1
                advantages_S = np.where(group_S == group, 0.0, advantages_S)
    return advantages_S, dead_groups


def refusal(trajectory: Trajectory) -> str | None:
    """Why this trajectory is not trained on, or None. Greedy and truncated sampling (top-p) have other log-probs
    than the learner can recompute."""
    problem = trajectory.problem()
    if problem is not None:
        return problem
    if trajectory.loss_mask[0]:
        return "no_prompt"
    if trajectory.spec.sampling.temperature <= 0:
        return "greedy"
    if trajectory.spec.sampling.top_p < 1:
        return "top_p"
    if trajectory.reward is None:
        return "reward_missing"
    if not np.isfinite(trajectory.reward):
        return "reward_not_finite"
    return None


def dead_kind(rewards_G: np.ndarray) -> str | None:
    """Whether all rewards are equal, by max − min: a standard deviation of equal numbers need not be 0."""
    highest, lowest = float(rewards_G.max()), float(rewards_G.min())
    if highest - lowest > 0:
        return None
    if highest >= 1:
        return "all_pass"
    return "all_fail" if highest <= 0 else "all_equal"


def _sequence(
    member: _Fit, advantage: float, version_steps: Mapping[int, int] | None, steps_done: int
) -> TrainSequence:
    trajectory = member.trajectory
    lags = np.zeros(len(trajectory.token_ids), dtype=np.int32)
    if version_steps is not None:
        mask = trajectory.loss_mask
        lags[mask] = token_lags(trajectory.versions[mask], version_steps, steps_done)
    return TrainSequence(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask,
        logprobs=trajectory.logprobs,
        versions=trajectory.versions,
        advantage=advantage,
        temperature=trajectory.spec.sampling.temperature,
        lags=lags,
        group=member.group,
        reward=member.reward,
    )
