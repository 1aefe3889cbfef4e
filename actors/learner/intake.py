"""From the groups of a batch to sequences with advantages: the gate through which everything trained must pass.

A missing reward is missing, never 0: its trajectory gets no advantage, shifts nobody's baseline, and its tokens leave
the loss. Nothing that is not finite passes. Every trajectory that is turned away is counted under a name. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headrace.actors.learner.advantages.protocol import Advantage
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.session import Group, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Intake:
    """`sequences` may be empty: then there is nothing to learn from this batch and no optimizer step is taken.

    session_ids: of the sequences, in their order
    refused:     trajectories turned away, by reason
    rewards:     float64[K], the finite rewards of the batch, refused trajectories left out
    dead_groups: groups of equal rewards, by kind: "all_pass" (>= 1), "all_fail" (<= 0), "all_equal" (between)
    """

    sequences: tuple[TrainSequence, ...]
    session_ids: tuple[str, ...]
    refused: Counter[str]
    rewards: np.ndarray
    num_groups: int
    dead_groups: Counter[str]

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
        if len(self.rewards):
            values["reward/mean"] = float(self.rewards.mean())
            values["reward/std"] = float(self.rewards.std())
        return values


def take_in(groups: Iterable[Group], advantage: Advantage) -> Intake:
    """Advantages are computed inside each group as it was handed out: by its id, never by its prompt."""
    sequences: list[TrainSequence] = []
    session_ids: list[str] = []
    refused: Counter[str] = Counter()
    dead_groups: Counter[str] = Counter()
    rewards: list[float] = []
    num_groups = 0
    for group in groups:
        num_groups += 1
        fit: list[tuple[Trajectory, float]] = []
        for trajectory in group.trajectories:
            reason = refusal(trajectory)
            if reason is None and trajectory.reward is not None:
                fit.append((trajectory, trajectory.reward))
            else:
                refused[reason or "reward_missing"] += 1
        rewards += [reward for _, reward in fit]
        if len(fit) < max(advantage.min_rewards, 1):
            refused["group_too_small"] += len(fit)
            continue
        rewards_G = np.array([reward for _, reward in fit], dtype=np.float64)
        kind = dead_kind(rewards_G) if advantage.min_rewards > 1 else None
        if kind is not None:
            dead_groups[kind] += 1
        advantages_G = advantage(rewards_G) if kind is None else np.zeros(len(fit))
        if not np.isfinite(advantages_G).all():
            refused["advantage_not_finite"] += len(fit)
            continue
        session_ids += [t.spec.session_id for t, _ in fit]
        sequences += [_sequence(t, float(a)) for (t, _), a in zip(fit, advantages_G, strict=True)]
    return Intake(
        sequences=tuple(sequences),
        session_ids=tuple(session_ids),
        refused=refused,
        rewards=np.array(rewards, dtype=np.float64),
        num_groups=num_groups,
        dead_groups=dead_groups,
    )


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


def _sequence(trajectory: Trajectory, advantage: float) -> TrainSequence:
    return TrainSequence(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask,
        logprobs=trajectory.logprobs,
        versions=trajectory.versions,
        advantage=advantage,
        temperature=trajectory.spec.sampling.temperature,
    )
