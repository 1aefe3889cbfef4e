"""Sampling seeds."""

from __future__ import annotations

from dataclasses import replace

from headrace.actors.environment.seeds import generation_seed
from headrace.actors.session import Sampling


def test_seeds_are_distinct_and_the_same_on_a_rerun(make_spec):
    """cases B53: verl-project/verl#6857: members of a group that share a seed have no advantage."""

    spec = replace(make_spec(), sampling=Sampling(seed=None))

    def all_seeds(base: int) -> list[int | None]:
        return [
            generation_seed(base, replace(spec, group_id=f"g{group}", member=member, attempt=attempt), turn)
            for group in range(4)
            for member in range(8)
            for attempt in range(2)
            for turn in range(3)
        ]

    seeds = all_seeds(7)
    assert len(set(seeds)) == len(seeds)
    assert seeds == all_seeds(7)
    assert not set(seeds) & set(all_seeds(8))
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)
    assert generation_seed(None, spec, 0) is None


def test_a_session_s_own_seed_goes_before_and_leaves_the_group_out(make_spec):
    """A task that a restarted learner rolled back is issued again as another group, to the same end."""
    specs = [replace(make_spec(), member=member, sampling=Sampling(seed=5)) for member in range(8)]
    seeds = [generation_seed(0, spec, 0) for spec in specs]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [generation_seed(1, replace(spec, group_id="another"), 0) for spec in specs]
