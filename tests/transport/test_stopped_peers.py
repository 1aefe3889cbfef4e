"""Real processes that live but give no sign: stopped by SIGSTOP, or held by their own code."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.transport import (
    DeadlineExceeded,
    PeerLost,
    Runtime,
    WaitQuery,
    WaitReport,
    ZmqNetwork,
)

pytestmark = pytest.mark.slow

CHILD = """
from __future__ import annotations
import asyncio, logging, os, sys, time
from dataclasses import dataclass
from headrace.transport import Actor, Runtime, ZmqNetwork, handles, message

@message("test.nap")
@dataclass(frozen=True, slots=True)
class Nap:
    seconds: float

@message("test.say")
@dataclass(frozen=True, slots=True)
class Say:
    text: str

class Child(Actor):
    @handles(Nap)
    async def nap(self, message: Nap) -> Say:
        time.sleep(message.seconds)
        return Say("rested")

    @handles(Say)
    async def say(self, message: Say) -> Say:
        return Say(str(os.getpid()))

async def main():
    folder, directory, incarnation = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    runtime = Runtime(ZmqNetwork(ipc_folder=folder), directory=directory, incarnation=incarnation, lag_warn_s=0.5)
    await runtime.start()
    await runtime.add(Child(), "child/0")
    await runtime.failed

asyncio.run(main())
"""


@contextmanager
def child(folder: Path, host: Runtime, incarnation: str) -> Iterator[subprocess.Popen[bytes]]:
    """Its log is `<incarnation>.log` in the folder."""
    with (folder / f"{incarnation}.log").open("wb") as log:
        command = [sys.executable, "-c", CHILD, str(folder), str(host.address), incarnation]
        process = subprocess.Popen(command, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_waits_for_a_stopped_process_end_by_their_deadlines_then_by_its_silence(
    tmp_path: Path, samples: SimpleNamespace
) -> None:
    """messaging faults 10 and 20: SIGSTOP is no death: who has a deadline meets it, the others hear of the silence; the
    one that took its name is found, and the stopped one is not heard any more when it goes on."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)), silence_s=6)
        await host.start()
        watcher = samples.Watcher(role="child")
        await host.add(watcher, "watcher/0")
        with child(tmp_path, host, "one") as one:
            assert (await host.context.ask("child", samples.Say("who"), timeout_s=60)).text == str(one.pid)
            one.send_signal(signal.SIGSTOP)
            patient = asyncio.ensure_future(host.context.ask("child", samples.Say("who"), timeout_s=60))
            for message in (samples.Say("who"), WaitQuery()):
                with pytest.raises(DeadlineExceeded, match=r"child/0 \(incarnation one\) did not reply within 0.5 s"):
                    await host.context.ask("child", message, timeout_s=0.5)
            report: WaitReport = await host.context.ask(host.context.name, WaitQuery(), timeout_s=5)
            assert (report.waits[0].peer, report.waits[0].what) == ("child/0", "Say")
            with pytest.raises(PeerLost, match=r"incarnation one.*no heartbeat for"):
                await patient
            with child(tmp_path, host, "two") as two:
                assert (await host.context.ask("child", samples.Say("who"), timeout_s=60)).text == str(two.pid)
                one.send_signal(signal.SIGCONT)
                assert await asyncio.to_thread(one.wait, 30) != 0, "it hears that it counts as dead, and ends"
                assert (await host.context.ask("child", samples.Say("who"), timeout_s=60)).text == str(two.pid)
                assert isinstance(await host.context.ask("child", WaitQuery(), timeout_s=60), WaitReport)
        assert [type(news).__name__ for news in watcher.news] == ["PeerUp", "PeerDown", "PeerUp"]
        await host.stop()

    asyncio.run(main())


def test_a_handler_that_blocks_is_warned_about_and_not_killed(tmp_path: Path, samples: SimpleNamespace) -> None:
    """messaging fault 26: well below silence_s nothing happens but a line that names it."""

    async def main() -> None:
        host = Runtime(ZmqNetwork(ipc_folder=str(tmp_path)), silence_s=30)
        await host.start()
        watcher = samples.Watcher(role="child")
        await host.add(watcher, "watcher/0")
        with child(tmp_path, host, "one"):
            assert (await host.context.ask("child", samples.Nap(3), timeout_s=60)).text == "rested"
            assert (await host.context.ask("child", samples.Say("still there"), timeout_s=60)).text
            log = tmp_path / "one.log"
            await samples.until(lambda: "held the event loop for 3.0 s; move it to" in log.read_text(), 30)
        assert len(watcher.news) == 1
        await host.stop()

    asyncio.run(asyncio.wait_for(main(), 120))
    log = (tmp_path / "one.log").read_text()
    assert "child/0.nap has held the event loop for 0." in log
    assert "child/0.nap has held the event loop for 2." in log
    assert " in nap" in log, "the stack"
