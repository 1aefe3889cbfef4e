"""What to do with tokens past the hard lag limit in a group that is trained anyway: leave them out of the loss.
Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.actors.session import NO_VERSION, Group, Trajectory


def mask_older(trajectory: Trajectory, oldest_allowed: int) -> Trajectory:
    """A copy in which tokens of versions before `oldest_allowed` are context: seen, not trained."""
    over_age = trajectory.loss_mask & (trajectory.versions < oldest_allowed)
    if not over_age.any():
        return trajectory
    return replace(
        trajectory,
        loss_mask=trajectory.loss_mask & ~over_age,
        logprobs=np.where(over_age, np.float32(0.0), trajectory.logprobs),
        versions=np.where(over_age, np.int32(NO_VERSION), trajectory.versions),
    )


def mask_group(group: Group, oldest_allowed: int) -> tuple[Group, tuple[Trajectory, ...]]:
    """The group with over-age tokens masked, and the members of which nothing is left to train (they left the
    group)."""
    masked = [mask_older(trajectory, oldest_allowed) for trajectory in group.trajectories]
    kept = tuple(trajectory for trajectory in masked if trajectory.loss_mask.any())
    gone = tuple(trajectory for trajectory in masked if not trajectory.loss_mask.any())
    return Group(group.group_id, kept), gone
