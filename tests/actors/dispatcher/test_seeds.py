"""Seeds of sessions."""

from __future__ import annotations

from headrace.actors.dispatcher.seeds import session_seed


def test_seeds_are_distinct_and_the_same_again() -> None:
    """cases B53: verl-project/verl#6857: no two sessions share a seed, whichever generator serves them; a rerun
    repeats them."""

    def all_seeds(base: int) -> list[int]:
        train = [session_seed(base, "train", index, member) for index in range(2000) for member in range(8)]
        return train + [session_seed(base, "eval", v, p, m) for v in range(1, 9) for p in range(64) for m in range(8)]

    seeds = all_seeds(1)
    assert len(set(seeds)) == len(seeds)
    assert seeds == all_seeds(1)
    assert not set(seeds) & set(all_seeds(2))
    assert all(0 <= seed < 2**63 for seed in seeds)
