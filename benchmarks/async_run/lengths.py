"""How long simulated sessions are: lognormal, cut at what a context would hold. Pure.

A session's length is a function of its sampling seed, which is one of its task and member: the same session is as long
in every cell of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

_NORMAL = NormalDist()
_FINE = 1 << 32


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a session: exp(N(mu, sigma)), mu such that the mean is `mean_tokens` before it is rounded up to a
    token and cut at `max_tokens` (which takes 6 % of the mean off at sigma 1.5, nothing that shows at sigma 1)."""

    sigma: float
    mean_tokens: int = 32
    max_tokens: int = 1024

    def of_seed(self, seed: int) -> int:
        """The length of the session with that seed."""
        return int(self.at((seed % _FINE + 0.5) / _FINE))

    def at(self, quantile: float) -> float:
        z = _NORMAL.inv_cdf(quantile) if self.sigma else 0.0
        return self._tokens(np.float64(z))  # type: ignore[no-any-return]

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """int64[shape], of the distribution that `of_seed` draws from."""
        return self._tokens(rng.standard_normal(shape)).astype(np.int64)

    def _tokens(self, z: np.ndarray | np.float64) -> np.ndarray:
        tokens = self.mean_tokens * np.exp(self.sigma * z - self.sigma**2 / 2)
        return np.clip(np.ceil(tokens - 1e-9), 1, self.max_tokens)  # type: ignore[no-any-return]
