"""Nothing that came over the wire is unpickled, evaluated or imported: read off the source (cases H113)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

BANNED_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "yaml.load", "torch.load", "importlib.import_module"}
BANNED_OPTIONS = {"allow_pickle"}

WIRE = [*sorted((ROOT / "transport").rglob("*.py")), ROOT / "actors/messages.py"]
WIRE += sorted((ROOT / "actors/session").rglob("*.py"))

FROM_A_TABLE = {"transport/weights/carrier.py", "transport/weights/collective/communicator.py"}
"""import a module of their own table: by the name of a weight transport, or of a communicator's back-end"""

PICKLE_ELSEWHERE = {"actors/grader/worker_pool.py", "actors/grader/warden.py"}
"""Between a grader and the processes that it starts itself, by their pipes."""


def offences(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (f"{where} imports {a.name}" for a in node.names if a.name.partition(".")[0] in BANNED_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in BANNED_MODULES:
            yield f"{where} imports from {node.module}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in BANNED_CALLS or name.rpartition(".")[2] in {"recv_pyobj", "send_pyobj"}:
                yield f"{where} calls {name}"
            yield from (f"{where} gives {k.arg}" for k in node.keywords if k.arg in BANNED_OPTIONS)


@pytest.mark.parametrize("path", WIRE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_way_of_a_message_evaluates_nothing(path: Path) -> None:
    found = list(offences(path))
    if str(path.relative_to(ROOT)) in FROM_A_TABLE:
        found = [offence for offence in found if not offence.endswith("calls importlib.import_module")]
    assert found == []


def test_pickle_is_used_between_a_process_and_its_own_children_alone() -> None:
    users = {
        str(path.relative_to(ROOT))
        for folder in ("actors", "launch")
        for path in (ROOT / folder).rglob("*.py")
        if any("import" in offence for offence in offences(path) if "calls" not in offence)
    }
    assert users <= PICKLE_ELSEWHERE, "what comes from another machine or user must never be unpickled"
