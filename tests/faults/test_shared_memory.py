"""Shared memory: a full one is an error and no SIGBUS, a killed reader takes nothing with it, a killed writer's
leftovers go with the next start of its own run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.transport.weights import SenderSettings
from headrace.transport.weights.shm import ShmWriter

_WRITER = """
import resource, sys
from pathlib import Path
import torch
from headrace.transport.weights import SenderSettings
from headrace.transport.weights.shm import ShmWriter

if sys.argv[2] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))
writer = ShmWriter(SenderSettings(run_id="full"), directory=Path(sys.argv[1]))
small, large = {"w": torch.ones(1 << 20)}, {"w": torch.ones(16 << 20)}
assert writer.stage(small, version=1, step=1) is not None
try:
    writer.stage(large, version=2, step=2)
except OSError as error:
    print("REFUSED", error, flush=True)
writer.release(1)
assert writer.stage(small, version=3, step=3) is not None
writer.close()
print("left", [path.name for path in Path(sys.argv[1]).iterdir()], flush=True)
"""


@pytest.mark.parametrize("how", ["limit", "tmpfs"])
def test_full_shared_memory_is_an_error(how: str, tmp_path: Path) -> None:
    """messaging fault 15: a tmpfs gives the file its size and kills who touches a page without room."""
    command = [sys.executable, "-c", _WRITER, str(tmp_path), how]
    if how == "tmpfs":
        unshare = shutil.which("unshare")
        mount = f'mount -t tmpfs -o size=12m tmpfs "{tmp_path}" && exec "$@"'
        inside = [str(unshare), "-rm", "sh", "-c", mount, "sh"]
        if unshare is None or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
            pytest.skip("this system mounts no tmpfs in a namespace")
        command = [*inside, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "no room for 67112960 bytes of weights" in done.stdout
    assert "left []" in done.stdout


_DIES = """
import os, signal, sys
from pathlib import Path
import torch
from headrace.transport.weights import SenderSettings
from headrace.transport.weights.shm import ShmReader, ShmWriter

directory = Path(sys.argv[1])
writer = ShmWriter(SenderSettings(run_id="mine", num_buffers=1), directory=directory)
manifest = writer.stage({"w": torch.arange(1000)}, version=1, step=1).seal()
pids = []
for how in ("kill", "exit", "kill"):
    pid = os.fork()
    if pid == 0:
        reader = ShmReader(manifest)
        reader.verify()
        views = dict(reader.tensors())
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    os.waitpid(pid, 0)
    assert [path.name for path in directory.iterdir()] == [Path(manifest.location).name]
    reader = ShmReader(manifest)
    reader.verify()
    assert torch.equal(dict(reader.tensors())["w"], torch.arange(1000))
    reader.check_unchanged()
print("usable", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_readers_and_a_killed_writer(tmp_path: Path) -> None:
    """messaging fault 15, cases I124: python/cpython#116849: a reader's tracker unlinks what it does not own. Here a
    killed reader leaves the segment to the others, and a killed writer leaves one that the next of its run removes."""
    done = subprocess.run(
        [sys.executable, "-c", _DIES, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "usable\n", done.stderr
    assert done.returncode == -9
    assert "resource_tracker" not in done.stderr
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "headrace-other-weights-x-0").touch()
    writer = ShmWriter(SenderSettings(run_id="mine", num_buffers=1), directory=tmp_path)
    staged = writer.stage({"w": torch.zeros(10)}, version=1, step=1)
    assert staged is not None
    manifest = staged.seal()
    assert {path.name for path in tmp_path.iterdir()} == {Path(manifest.location).name, "headrace-other-weights-x-0"}
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["headrace-other-weights-x-0"]
