"""A version number is used once, whatever happens to the process."""

from __future__ import annotations

from headrace.actors.learner.versions import VersionLog


def test_a_restart_goes_on_above_the_last_version(tmp_path):
    log = VersionLog(tmp_path / "versions.jsonl")
    assert [log.claim(step) for step in (0, 4, 8)] == [1, 2, 3]
    again = VersionLog(tmp_path / "versions.jsonl")
    assert again.steps == {0: 0, 1: 0, 2: 4, 3: 8}
    assert again.claim(5) == 4


def test_a_half_written_line_is_ignored(tmp_path):
    path = tmp_path / "versions.jsonl"
    VersionLog(path).claim(0)
    with path.open("a") as file:
        file.write('{"version": 2, "st')
    log = VersionLog(path)
    assert log.claim(7) == 2
    assert VersionLog(path).steps[2] == 7


def test_what_was_lost_counts_from_where_it_parted(tmp_path):
    """A learner that trained to step 8 and goes on from its checkpoint at 5: no lag is below 0, in later lives too."""
    path = tmp_path / "versions.jsonl"
    log = VersionLog(path)
    for step in (0, 4, 8):
        log.claim(step)
    log.resume(5)
    assert log.steps == {0: 0, 1: 0, 2: 4, 3: 5}
    assert log.claim(5) == 4
    assert log.claim(6) == 5
    assert VersionLog(path).steps == {0: 0, 1: 0, 2: 4, 3: 5, 4: 5, 5: 6}
