"""The plan of a run is drawn from its seed: the same again, with as many kills as asked for."""

from __future__ import annotations

import pytest
from identifying.plan import FAULTS, MOMENTS, draw_plan


@pytest.mark.parametrize("num_kills", [0, 1, 5])
def test_kills_faults_and_haste_never_meet(num_kills: int) -> None:
    plan = draw_plan(3, 400, num_kills, settle_s=0.1)
    assert plan == draw_plan(3, 400, num_kills, settle_s=0.1) != draw_plan(4, 400, num_kills, settle_s=0.1)
    assert len(plan) == 400
    kills = [update.kill for update in plan if update.kill is not None]
    assert kills == [MOMENTS[i % len(MOMENTS)] for i in range(num_kills)]
    assert {update.fault for update in plan} == {None, *FAULTS}
    assert all((update.fault is not None) + (update.kill is not None) + update.hurried <= 1 for update in plan)
    assert all(update.fault is None and not update.hurried for update in (plan[0], plan[-1]))
