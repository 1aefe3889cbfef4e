"""In which order processes start, and so, reversed, stop: who is reported to starts before who reports. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.launch.topology import ProcessPlan

DEFAULT_ORDER = (
    "monitor", "parameter_server", "relay", "dispatcher", "grader", "generator", "evaluator", "environment",
    "learner_rank", "learner",
)  # fmt: skip


def in_start_order(processes: Sequence[ProcessPlan], order: Sequence[str] = DEFAULT_ORDER) -> list[ProcessPlan]:
    """Roles as listed; roles that are not listed (custom actors) start after the listed ones, as the topology has
    them."""
    ranks = {role: rank for rank, role in enumerate(order)}
    return sorted(processes, key=lambda process: ranks.get(process.role, len(ranks)))
