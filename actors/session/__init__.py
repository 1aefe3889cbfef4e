"""The vocabulary of sessions that every actor kind shares: tasks, trajectories, groups. Pure data, no actor."""

from headrace.actors.session.task import ChatMessage, Sampling, SessionSpec, Task, Tool, ToolCall
from headrace.actors.session.trajectory import NO_VERSION, Group, Trajectory, TrajectoryBuilder, Turn

__all__ = [
    "NO_VERSION",
    "ChatMessage",
    "Group",
    "Sampling",
    "SessionSpec",
    "Task",
    "Tool",
    "ToolCall",
    "Trajectory",
    "TrajectoryBuilder",
    "Turn",
]
