"""Which optimizer step each version of the weights holds, as far as the dispatcher was told. Pure."""

from __future__ import annotations

from bisect import bisect_right


class VersionSteps:
    """Versions that generators acknowledged. Version 0 is what the model folder held: step 0, never announced."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {0: 0}
        self._versions: list[int] = [0]

    @property
    def any_served(self) -> bool:
        return len(self._versions) > 1

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
        if step < self.newest_step:
            raise ValueError(
                f"version {version} holds step {step}, but version {self.newest} before it {self.newest_step}; "
                "a later version must not hold an earlier step"
            )
        self._versions.append(version)
        self._steps[version] = step
        return True

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
