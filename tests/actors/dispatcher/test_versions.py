"""Which step a version holds, also for versions that were never announced."""

from __future__ import annotations

import pytest

from headrace.actors.dispatcher.versions import VersionSteps


def test_an_unannounced_version_is_as_old_as_the_known_one_before_it() -> None:
    versions = VersionSteps()
    versions.served(1, 0)
    versions.served(3, 10)  # version 2 failed on its way, or its news was lost
    assert [versions.step_of(version) for version in (0, 1, 2, 3, 4)] == [0, 0, 0, 10, 10]
    assert versions.steps_between(1, 4) == {1: 0, 2: 0, 3: 10, 4: 10}


def test_old_news_says_nothing_and_contradictions_are_refused() -> None:
    versions = VersionSteps()
    assert not versions.serving
    assert versions.served(2, 5)
    assert versions.serving
    assert not versions.served(2, 5)
    assert not versions.served(1, 0)
    with pytest.raises(ValueError, match="must not hold an earlier step"):
        versions.served(3, 4)


def test_the_oldest_version_within_a_lag() -> None:
    versions = VersionSteps()
    for version, step in ((1, 0), (2, 1), (3, 2), (4, 3)):
        versions.served(version, step)
    assert versions.oldest_within(3, 1) == 3
    assert versions.oldest_within(3, 0) == 4
    assert versions.oldest_within(9, 1) == 5


def test_what_a_restarted_learner_lost_counts_from_where_it_parted() -> None:
    """Version 3 held 2 steps beyond the checkpoint at step 4; its tokens are as old as those of step 4."""
    versions = VersionSteps()
    for version, step in ((1, 0), (2, 4), (3, 6)):
        versions.served(version, step)
    versions.roll_back(4, version=5)
    assert [versions.step_of(version) for version in (1, 2, 3)] == [0, 4, 4]
    assert versions.served(4, 7), "it was on its way when the learner died"
    assert versions.newest_step == 4
    assert versions.served(6, 4), "the first of the new life holds no more steps than the one before it"
    assert versions.served(7, 5)
    assert (versions.counted(5, 9), versions.counted(6, 9)) == (4, 9)
    again = VersionSteps()
    again.restore(versions.take_changes(), versions.parting, serving=True)
    assert again.steps_between(0, 8) == versions.steps_between(0, 8)
    assert again.counted(5, 9) == 4
