"""How many training sessions may be open: the pace that bounds the mean lag. Pure arithmetic.

    issued - dropped <= (version's step + max_lag_versions + 1) * batch_sessions

where what was handed to the learner counts as whole batches. A batch that is a session short (a group lost a member)
therefore does not let one more session into flight for ever after: shortfalls would add up to lag over a long run.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admission:
    max_lag_versions: int
    batch_sessions: int

    def __post_init__(self) -> None:
        if self.max_lag_versions < 0:
            raise ValueError(f"max_lag_versions must be >= 0, got {self.max_lag_versions}; use 0 for on-policy")
        if self.batch_sessions < 1:
            raise ValueError(f"batch_sessions must be >= 1, got {self.batch_sessions}")

    def room(self, *, version_step: int, trained_batches: int, training_batches: int, open_sessions: int) -> int:
        """Sessions that may be issued now; negative where the limit is exceeded (it shrank).

        version_step:     optimizer steps in the newest version that generators serve
        trained_batches:  optimizer steps that the learner has done
        training_batches: batches that it holds and has not yet reported
        open_sessions:    running + grading + ready
        """
        limit = (version_step + self.max_lag_versions + 1) * self.batch_sessions
        spent = (trained_batches + training_batches) * self.batch_sessions
        return limit - spent - open_sessions
