"""What to do with tokens past the hard lag limit in a group that is trained anyway: leave them out of the loss.
Pure."""

from __future__ import annotations

from headrace.actors.session import Group, Trajectory


def mask_group(group: Group, oldest_allowed: int) -> tuple[Group, tuple[Trajectory, ...]]:
    """The group with over-age tokens masked, and the members of which nothing is left to train (they left the
    group)."""
    masked = [trajectory.without_older(oldest_allowed) for trajectory in group.trajectories]
    kept = tuple(trajectory for trajectory in masked if trajectory.loss_mask.any())
    gone = tuple(trajectory for trajectory in masked if not trajectory.loss_mask.any())
    return Group(group.group_id, kept), gone
