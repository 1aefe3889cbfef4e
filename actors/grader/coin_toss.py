"""The control experiment: a reward that knows nothing of the answer. A run that "learns" from it has a leak."""

from __future__ import annotations

import hashlib

from headrace.actors.grader.grading import Grade, Isolation
from headrace.actors.session import Trajectory


class CoinToss:
    """1.0 with probability `p`, else 0.0; decided by the session's id and `seed` alone, so a repeated grading
    agrees."""

    isolation: Isolation = "inline"

    def __init__(self, *, p: float = 0.5, seed: int = 0) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p must be in [0, 1], got {p}")
        self.p = p
        self.seed = seed

    def grade(self, trajectory: Trajectory) -> Grade:
        digest = hashlib.blake2b(f"{self.seed}/{trajectory.spec.session_id}".encode(), digest_size=8).digest()
        reward = 1.0 if int.from_bytes(digest, "big") < self.p * 2**64 else 0.0
        return Grade(reward, {"coin": reward})
