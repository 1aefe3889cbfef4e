"""Run folders are made exclusively, and `latest` points to the newest."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from headrace.launch.run_folder import create_run_folder, find_run, point_latest, read_config, write_config, write_json

NOW = datetime(2025, 6, 1, 12, 30, 5)


def test_eight_launches_at_one_clock_get_eight_folders(tmp_path: Path) -> None:
    """cases K134: hydra-ecosystem/hydra#2925."""
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run_folder(tmp_path, "quickstart", NOW), range(8)))
    assert len(set(folders)) == 8
    assert all(folder.is_dir() and (folder / "logs").is_dir() for folder in folders)
    assert tmp_path / "2025-06-01" / "123005-quickstart" in folders


def test_latest_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        folder = create_run_folder(tmp_path, "a", NOW)
        write_config(folder, {"seed": 1, "nested": {"none": None}})
        point_latest(tmp_path, folder)
        assert find_run(tmp_path, None) == folder.resolve()
    assert read_config(folder) == {"seed": 1, "nested": {"none": None}}
    assert not (tmp_path / "latest").readlink().is_absolute()


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run folder"):
        find_run(tmp_path, str(tmp_path))


def test_names_cannot_leave_the_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.name"):
        create_run_folder(tmp_path, "../x", NOW)


def test_a_write_that_fails_leaves_no_staged_file_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, text: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left.*outcome\.json"):
        write_json(tmp_path / "outcome.json", {})
    assert list(tmp_path.iterdir()) == []
