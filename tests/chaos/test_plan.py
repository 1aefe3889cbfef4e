"""Plans of faults: what a seed draws."""

from __future__ import annotations

from collections import Counter

from chaos_run.plan import Phase, Position, Shape, draw_faults
from chaos_run.run import KINDS, choose, topology_of
from chaos_run.victims import Victim

SHAPE = Shape(pretrain_steps=200, max_steps=80, evaluation_every_steps=20)


def test_a_seed_repeats_and_seeds_differ() -> None:
    assert draw_faults(3, KINDS["laptop"], SHAPE) == draw_faults(3, KINDS["laptop"], SHAPE)
    assert len({draw_faults(seed, KINDS["laptop"], SHAPE) for seed in range(50)}) == 50


def test_five_kills_in_the_order_of_a_run_at_positions_that_it_reaches() -> None:
    for seed in range(200):
        faults = draw_faults(seed, KINDS["laptop"], SHAPE)
        assert [fault.signal for fault in faults].count("SIGKILL") == 5
        assert len(faults) - 5 == [fault.signal for fault in faults].count("SIGSTOP") <= 1
        assert [fault.position for fault in faults] == sorted(fault.position for fault in faults)
        assert all(sorted(fault.kinds) == sorted(KINDS["laptop"]) for fault in faults)
        assert all(fault.delay_s >= 0 for fault in faults)
        for phase, step in (fault.position for fault in faults):
            assert step <= (SHAPE.pretrain_steps if phase is Phase.PRETRAINING else SHAPE.max_steps - 1)


def test_fifty_runs_kill_every_kind_several_times_in_every_phase() -> None:
    plans = [draw_faults(seed, KINDS[topology_of(seed)], SHAPE) for seed in range(50)]
    faults = [fault for plan in plans for fault in plan]
    wanted = Counter(fault.kinds[0] for fault in faults if fault.signal == "SIGKILL")
    assert set(wanted) == set(KINDS["two_nodes_one_host"])
    assert min(wanted.values()) >= 8
    moments = Counter(fault.moment for fault in faults)
    assert set(moments) == {"start", "pretrain", "train", "evaluation", "end", "chain"}
    assert min(moments.values()) >= 8
    assert 15 <= sum(fault.signal == "SIGSTOP" for fault in faults) <= 35
    assert all(max(Counter(fault.kinds[0] for fault in plan).values()) <= 2 for plan in plans)


def test_a_position_is_how_far_a_run_is() -> None:
    assert Position(Phase.STARTING, 0) < Position(Phase.PRETRAINING, 200) < Position(Phase.TRAINING, 1)


def test_the_wanted_kind_is_struck_or_the_next_that_lives() -> None:
    fault = draw_faults(0, ("a", "b", "c"), SHAPE, num_kills=1)[0]
    living = [Victim(n, f"{kind}-0", kind) for n, kind in enumerate(sorted(fault.kinds))]
    assert choose(living, fault).kind == fault.kinds[0]
    without = [victim for victim in living if victim.kind != fault.kinds[0]]
    assert choose(without, fault).kind == fault.kinds[1]
