"""Sampling seeds."""

from __future__ import annotations

from dataclasses import replace

from headrace.actors.environment.seeds import generation_seed


def test_seeds_are_distinct_and_the_same_on_a_rerun(make_spec):
    """cases B53: verl-project/verl#6857: members of a group that share a seed have no advantage."""

    def all_seeds(base: int) -> list[int]:
        return [
            generation_seed(base, replace(make_spec(), group_id=f"g{group}", member=member, attempt=attempt), turn)
            for group in range(4)
            for member in range(8)
            for attempt in range(2)
            for turn in range(3)
        ]

    seeds = all_seeds(7)
    assert len(set(seeds)) == len(seeds)
    assert seeds == all_seeds(7)
    assert not set(seeds) & set(all_seeds(8))
    assert all(0 <= seed < 2**63 for seed in seeds)
