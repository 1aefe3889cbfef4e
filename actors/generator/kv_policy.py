"""What becomes of keys and values that older weights made: `weights.kv`, `weights.prefix_cache`. Pure; engines obey it.

kv: of requests in flight at an update. "keep": they go on upon what they have; their later log-probs are those of the
new weights upon older keys and values. "recompute": they are prefilled anew, so that what follows is what the new
weights alone would say.
prefix_cache: of prompts that a later request begins with. "keep": shared by `max_versions` consecutive versions (None:
for ever), so that a long session is not prefilled anew at each version. "salt": by one version only.
"""

from __future__ import annotations

from dataclasses import dataclass

KV = ("keep", "recompute")
PREFIX_CACHE = ("keep", "salt")


@dataclass(frozen=True, slots=True)
class KvPolicy:
    """The defaults are those of an engine that caches no prefixes. Raises ValueError, by the setting's key."""

    kv: str = "keep"
    prefix_cache: str = "salt"
    max_versions: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (("kv", self.kv, KV), ("prefix_cache", self.prefix_cache, PREFIX_CACHE)):
            if value not in allowed:
                raise ValueError(f"generator.engine.{name} must be {' or '.join(allowed)}, got {value!r}")
        if self.max_versions is not None and self.max_versions < 1:
            raise ValueError(
                f"generator.engine.prefix_cache_max_versions must be >= 1, got {self.max_versions}; null is for ever"
            )
        if self.kv == "recompute" and self.prefix_cache == "keep":
            raise ValueError(
                "generator.engine.prefix_cache must be salt where kv is recompute, got keep: a request that is "
                "prefilled anew would find its old keys and values in the cache; set weights.prefix_cache=salt, or "
                "weights.kv=keep"
            )

    @property
    def recompute(self) -> bool:
        return self.kv == "recompute"

    def salt(self, version: int) -> str | None:
        """Requests share cached prefixes where their salts are equal, that of the version at which each was made."""
        if self.prefix_cache == "salt":
            return f"v{version}"
        return None if self.max_versions is None else f"v{version // self.max_versions}"
