"""The wheel holds what the folders hold; nothing names this machine."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = ("actors", "configs", "launch", "transport")
SHIPPED = {".py", ".yaml", ".jsonl", ".typed", ".j2"}


def tracked(repository: Path) -> list[Path]:
    """Files that git knows; of an unpacked archive, all files."""
    done = subprocess.run(["git", "-C", str(repository), "ls-files"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return [Path(line) for line in done.stdout.splitlines() if (repository / line).is_file()]
    return [
        path.relative_to(repository) for path in repository.rglob("*") if path.is_file() and ".venv" not in path.parts
    ]


def shipped(repository: Path) -> set[str]:
    return {
        str(Path("headrace") / path.relative_to(repository))
        for folder in FOLDERS
        for path in sorted((repository / folder).rglob("*"))
        if path.suffix in SHIPPED and path.is_file() and "__pycache__" not in path.parts
    }


def listed(repository: Path) -> set[str]:
    parser = configparser.ConfigParser()
    parser.read(repository / "setup.cfg")
    return set(parser["options"]["packages"].split())


def test_every_folder_with_code_is_listed_and_documented(repository: Path) -> None:
    """A folder that is not listed works in an editable install and is missing from the wheel."""
    folders = {str(Path(path).parent).replace("/", ".") for path in shipped(repository) if path.endswith(".py")}
    assert folders == {name for name in listed(repository) if name != "headrace"}
    for name in folders:
        init = repository.joinpath(*name.split(".")[1:], "__init__.py")
        assert init.is_file(), f"{name} has no __init__.py"
        assert init.read_text().startswith('"""'), f"{init} does not say what the folder holds"


@pytest.mark.slow
def test_the_wheel_holds_what_the_folders_hold(repository: Path, tmp_path: Path) -> None:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    source.mkdir()
    for path in tracked(repository):  # a copy: a build writes into the tree
        if path.parts[0] in (*FOLDERS, "pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
            target = source / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((repository / path).read_bytes())
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {name for name in shipped(repository) if (source / Path(name).relative_to("headrace")).is_file()}
    assert {name for name in names if name.startswith("headrace/")} == expected
    assert any(name.endswith("entry_points.txt") for name in names)
    assert any("LICENSE" in name for name in names)


def test_licence(repository: Path) -> None:
    text = (repository / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_no_file_names_this_machine(repository: Path) -> None:
    """No absolute path of a developer's machine; no host of a package index (pip's own variables name that)."""
    machine = re.compile(r"(?<![\w.])/(home|Users|root|work|opt)/\w")
    index = re.compile(r"\b(pypi\.org|pythonhosted\.org|download\.pytorch\.org|https?://[\w.-]+/simple)\b")
    found = []
    for path in tracked(repository):
        if (
            path.suffix in {".png", ".gz", ".safetensors"}
            or path == Path("LICENSE")
            or path.name == Path(__file__).name
        ):
            continue
        text = (repository / path).read_text(errors="replace")
        found += [f"{path}: {match[0]}" for pattern in (machine, index) for match in pattern.finditer(text)]
    assert found == []


def test_constraints_are_exact_and_without_hosts(repository: Path) -> None:
    pin = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._!-]+")
    for file in sorted((repository / "constraints").glob("*.txt")):
        for line in file.read_text().splitlines():
            assert line.startswith(("#", "-c ")) or pin.fullmatch(line), f"{file.name}: {line}"


def test_make_targets_say_what_ci_calls(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text()
    for target in ("run", "test", "test-fast", "check", "bench", "clean"):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
    for script in (".ci/run", ".github/workflows/ci.yml"):
        text = (repository / script).read_text()
        assert "make check" in text
        assert "make test" in text
