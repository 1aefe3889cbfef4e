"""Which optimizer step each version of the weights holds, as far as the dispatcher was told. Pure.

A learner that was restarted goes on from an earlier step, with a new version. What the versions before that one hold
beyond the step was lost: it is no part of any later weights, so that lags are counted from the step where they part.
"""

from __future__ import annotations

from bisect import bisect_right


class VersionSteps:
    """Versions that generators acknowledged. Version 0 is what the model folder held: step 0, never announced."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {0: 0}
        self._versions: list[int] = [0]
        self._lost_until = 0
        self._parting_step = 0
        self._changed: dict[int, int] = {}
        self.serving = False
        """whether generators of this launch have a version that a learner published: before that they hold what the
        model folder holds"""

    @property
    def newest(self) -> int:
        return self._versions[-1]

    @property
    def newest_step(self) -> int:
        return self._steps[self.newest]

    def served(self, version: int, step: int) -> bool:
        """Take an announcement. False where it says nothing new (repeated, or older than the newest)."""
        if version <= self.newest:
            return False
        step = self.counted(version, step)
        if step < self.newest_step:
            raise ValueError(
                f"version {version} holds step {step}, but version {self.newest} before it {self.newest_step}; "
                "a later version must not hold an earlier step"
            )
        self.serving = True
        self._versions.append(version)
        self._steps[version] = self._changed[version] = step
        return True

    def roll_back(self, step: int, version: int) -> None:
        """The learner goes on from `step`; versions up to `version` were published before that, announced or not."""
        self._lost_until, self._parting_step = version, step
        for known, holds in self._steps.items():
            if holds > step:
                self._steps[known] = self._changed[known] = step

    def counted(self, version: int, step: int) -> int:
        """The steps of a version that are part of what the learner trains now, where it holds `step` of them."""
        return min(step, self._parting_step) if version <= self._lost_until else step

    def step_of(self, version: int) -> int:
        """The step of a version; for one that was not announced yet, that of the newest known one before it. Tokens may
        overtake the announcement of their version: this bound makes them look older, never younger, than they are."""
        step = self._steps.get(version)
        if step is not None:
            return step
        return self._steps[self._versions[max(0, bisect_right(self._versions, version) - 1)]]

    def oldest_within(self, step: int, max_lag: int) -> int:
        """The oldest known version whose lag at `step` is at most `max_lag`; one past the newest where there is
        none."""
        for version in self._versions:
            if step - self._steps[version] <= max_lag:
                return version
        return self.newest + 1

    def steps_between(self, oldest: int, newest: int) -> dict[int, int]:
        """Version → step for every version from `oldest` to `newest`, bounds included."""
        return {version: self.step_of(version) for version in range(max(0, oldest), newest + 1)}

    # --- the journal ------------------------------------------------------------------------------------------------

    def take_changes(self) -> dict[int, int]:
        """Version → step of what changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    @property
    def parting(self) -> tuple[int, int]:
        """(version, step) of the last `roll_back`; (0, 0) before one."""
        return self._lost_until, self._parting_step

    def restore(self, steps: dict[int, int], parting: tuple[int, int], *, serving: bool) -> None:
        self.serving = serving
        self._steps |= steps
        self._versions = sorted(self._steps)
        self._lost_until, self._parting_step = parting
