"""`headrace scale` from its words to its exit code, against a real socket. What the launcher does behind it is
played."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.launch.cli import main
from headrace.launch.control import CONTROL_FILE, MAX_LINE_BYTES, ControlServer
from headrace.launch.patience import Say
from headrace.launch.scaling import CannotScale, Wish

Capture = pytest.CaptureFixture[str]


class Changes:
    """What a scaler would do. `wishes`: what it was asked."""

    def __init__(self, act: Callable[[Say], Awaitable[str]] | None = None) -> None:
        self.wishes: list[Wish] = []
        self._act = act

    def counts(self) -> str:
        return "generator=1 on local: generator/0"

    async def change(self, wish: Wish, say: Say) -> str:
        self.wishes.append(wish)
        say("generator/1 joins")
        return "done" if self._act is None else await self._act(say)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with a path that is too long for a socket's."""
    folder = tmp_path / ("deep" * 20) / ("deeper" * 20)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("launch: {_target_: headrace.launch.local.LocalLauncher}\n")
    monkeypatch.chdir(tmp_path)
    return folder


@contextmanager
def served(run: Path, changes: Changes) -> Iterator[Callable[[], None]]:
    """A launcher's control server on a loop of its own. Yields what ends it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with tempfile.TemporaryDirectory() as private:

        def on_loop(work: Awaitable[None]) -> None:
            asyncio.run_coroutine_threadsafe(work, loop).result(10)  # type: ignore[arg-type]

        async def make() -> ControlServer:
            server = ControlServer(run, Path(private), changes)
            await server.start()
            return server

        server = asyncio.run_coroutine_threadsafe(make(), loop).result(10)
        try:
            yield lambda: on_loop(server.close())
        finally:
            on_loop(server.close())
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()


def scale(*arguments: object) -> int:
    return main(["scale", *map(str, arguments)])


class TestARunThatRuns:
    def test_a_wish_is_carried_out_and_told_of(self, run: Path, capsys: Capture) -> None:
        changes = Changes()
        with served(run, changes):
            assert scale(run, "generator=2", "--node", "n") == 0
            assert capsys.readouterr().out.splitlines() == ["generator/1 joins", "done"]
            assert scale("generator=3", run) == 0
            assert scale(run) == 0
            assert "generator=1 on local" in capsys.readouterr().out
        assert changes.wishes == [Wish("generator", 2, "n"), Wish("generator", 3)]

    def test_the_newest_run_is_meant_where_none_is_named(self, run: Path, capsys: Capture) -> None:
        Path("runs").mkdir()
        Path("runs/latest").symlink_to(run)
        with served(run, Changes()):
            assert scale() == 0

    @pytest.mark.parametrize("code", [1, 2])
    def test_a_refusal_has_its_words_and_its_exit_code(self, code: int, run: Path, capsys: Capture) -> None:
        async def refuse(say: Say) -> str:
            raise CannotScale("no free devices on node n", code)

        with served(run, Changes(refuse)):
            assert scale(run, "generator=2") == code
        assert capsys.readouterr().err == "headrace: no free devices on node n\n"

    def test_a_defect_in_a_change_ends_that_change(self, run: Path, capsys: Capture) -> None:
        async def fail(say: Say) -> str:
            raise ZeroDivisionError("a defect")

        with served(run, Changes(fail)):
            assert scale(run, "generator=2") == 1
            assert "a defect" in capsys.readouterr().err
            assert scale(run) == 0

    def test_the_run_ends_meanwhile(self, run: Path, capsys: Capture) -> None:
        async def hang(say: Say) -> str:
            threading.Thread(target=end[0]).start()
            await asyncio.sleep(60)
            return "done"

        end: list[Callable[[], None]] = []
        with served(run, Changes(hang)) as close:
            end.append(close)
            assert scale(run, "generator=2") == 1
        assert "the run has ended" in capsys.readouterr().err
        assert not (run / CONTROL_FILE).exists()

    def test_others_are_kept_out(self, run: Path) -> None:
        with served(run, Changes()):
            path = Path(json.loads((run / CONTROL_FILE).read_text())["socket"])
            assert [stat.S_IMODE(p.stat().st_mode) for p in (run / CONTROL_FILE, path, path.parent)] == [
                0o600, 0o600, 0o700,
            ]  # fmt: skip

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
    def test_a_process_of_another_user_is_not_served(self, run: Path) -> None:
        """Where the folder's mode did not keep it out."""
        with served(run, Changes()):
            path = Path(json.loads((run / CONTROL_FILE).read_text())["socket"])
            path.chmod(0o777)
            path.parent.chmod(0o755)
            child = os.fork()
            if child == 0:
                os._exit(_bytes_for_a_stranger(path))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "not a byte for a stranger"

    @pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'{"role": 1}\n', b"[" * 9000 + b"\n", b"x" * 70_000])
    def test_what_is_no_request_is_answered_so(self, line: bytes, run: Path) -> None:
        assert MAX_LINE_BYTES < 70_000
        with served(run, Changes()):
            path = json.loads((run / CONTROL_FILE).read_text())["socket"]
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(10)
                client.connect(path)
                client.sendall(line)
                answer = json.loads(client.makefile().readline())
            assert answer["exit"] == 1
            assert scale(run) == 0


def _bytes_for_a_stranger(path: Path) -> int:
    """How much a process of another user is told; in a child, which becomes that user."""
    try:
        os.setgroups([])
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(5)
            stranger.connect(str(path))
            stranger.sendall(b"{}\n")
            return len(stranger.recv(100))
    except (ConnectionResetError, BrokenPipeError):
        return 0
    except BaseException:  # the child must not come back
        return 255


class TestNoSuchRun:
    def test_no_run(self, tmp_path: Path, run: Path, capsys: Capture) -> None:
        assert scale(tmp_path, "generator=2") == 1
        assert "is no run folder" in capsys.readouterr().err
        assert scale("generator=2") == 1
        assert "there is no run in runs here yet" in capsys.readouterr().err

    def test_one_that_has_ended(self, run: Path, capsys: Capture) -> None:
        (run / "outcome.json").write_text("{}")
        assert scale(run, "generator=2") == 1
        assert "is not running any more: it has ended" in capsys.readouterr().err

    def test_one_whose_launcher_was_killed(self, run: Path, capsys: Capture) -> None:
        gone = {"socket": "/nowhere/control.sock", "host": socket.gethostname(), "pid": 77}
        (run / CONTROL_FILE).write_text(json.dumps(gone))
        assert scale(run, "generator=2") == 1
        assert "is not running any more: its launcher (process 77) is gone" in capsys.readouterr().err

    def test_one_on_another_host(self, run: Path, capsys: Capture) -> None:
        (run / CONTROL_FILE).write_text(json.dumps({"socket": "/x", "host": "elsewhere", "pid": 77}))
        assert scale(run, "generator=2") == 1
        assert "runs on host elsewhere, this is" in capsys.readouterr().err

    def test_one_in_a_single_process(self, run: Path, capsys: Capture) -> None:
        (run / "config.yaml").write_text("launch: {_target_: headrace.launch.inprocess.InProcessLauncher}\n")
        assert scale(run, "generator=2") == 1
        assert "launched with launch=inprocess; use launch=local" in capsys.readouterr().err

    def test_a_damaged_file(self, run: Path, capsys: Capture) -> None:
        (run / CONTROL_FILE).write_text("{")
        assert scale(run) == 1
        assert "control.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generator=0"], "generator: got 0; allowed: an integer from 1 to 10000: a role needs at least one actor"),
        (["generator=two"], "generator: got two; allowed: an integer from 1"),
        (["generator="], "generator: got nothing; allowed"),
        (["generator=2", "grader=2"], "give one RUN and one ROLE=COUNT at most"),
        (["a", "b"], "give one RUN and one ROLE=COUNT at most"),
        (["--node", "n"], "--node needs a ROLE=COUNT beside it"),
        (["generator=2", "--nod=n", "--x"], "unknown option"),
    ],
)
def test_a_command_line_that_cannot_work_is_exit_code_2(arguments: list[str], says: str, capsys: Capture) -> None:
    assert scale(*arguments) == 2
    assert says in capsys.readouterr().err
