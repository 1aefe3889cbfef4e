"""What is measured of Headrace alone: the codec on a rollout, the sizes of arrays, bulk beside round trips, deaths."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from contenders import headrace
from contenders.contender import FOLDER
from headrace.actors.messages import GradeSession
from headrace.actors.session import ChatMessage, Sampling, SessionSpec, Task, Trajectory
from headrace.transport import PeerLost, Runtime, ZmqNetwork, arrays
from headrace.transport.codec import decode, encode, pack, unpack

KIB, MIB = 1024, 1024 * 1024
TOKENS, TURNS = 2_000, 10
SIZES = (1 * KIB, 8 * KIB, 32 * KIB, 64 * KIB, 256 * KIB, 1 * MIB, 8 * MIB)
INLINE_ALL, FRAME_ALL = 1 << 40, 0
WAYS = (("inline", "ipc", INLINE_ALL), ("own_frame", "ipc_frames", FRAME_ALL), ("shared", "ipc", FRAME_ALL))
CHUNK = 256 * KIB
"""of weights that stream through messages; docs/runtime.md says why"""

VICTIM = """
import sys; sys.path.insert(0, sys.argv[1])
import asyncio
from contenders.headrace import Ping
from headrace.transport import Actor, Runtime, ZmqNetwork, handles

class Victim(Actor):
    @handles(Ping, concurrent=True)
    async def ping(self, message: Ping) -> Ping:
        await asyncio.sleep(1000)
        return message

async def main():
    runtime = Runtime(ZmqNetwork(ipc_folder=sys.argv[2]), directory=sys.argv[3], incarnation=sys.argv[4])
    await runtime.start()
    await runtime.add(Victim(), "victim/0")
    await runtime.failed

asyncio.run(main())
"""


def figures(*, quick: bool) -> dict[str, Any]:
    return {
        "codec_us": codec_us(),
        "array_sweep_MB_per_s": sweep(total_bytes=(32 if quick else 256) * MIB),
        **ask_under_bulk(total_bytes=(64 if quick else 1024) * MIB),
        **kill_to_error(10 if quick else 100),
    }


def text(found: dict[str, Any]) -> str:
    lines = [
        f"codec, a rollout of {TOKENS} tokens and {TURNS} turns, there and back: {found['codec_us']:.1f} µs",
        f"SIGKILL to the error at the caller: p50 {found['kill_to_error_ms_p50']:.1f} ms, "
        f"p99 {found['kill_to_error_ms_p99']:.1f} ms ({found['kills']} kills)",
        "",
        f"{'asks while arrays flow past':>30}{'p99 µs':>10}{'unloaded':>10}{'ratio':>8}{'asks':>8}{'arrays, MB/s':>15}",
    ]
    for size, under in found["ask_under_bulk"].items():
        lines.append(
            f"{size:>30}{under['p99_us']:>10.0f}{under['p99_unloaded_us']:>10.0f}{under['ratio']:>8.1f}"
            f"{under['asks']:>8,}{under['MB_per_s']:>15,.0f}"
        )
    lines += ["", f"{'array, MB/s':>12}{'in the message':>20}{'frame of its own':>20}{'shared memory':>20}"]
    for size, rates in found["array_sweep_MB_per_s"].items():
        lines.append(f"{size:>12}{rates['inline']:>20,.0f}{rates['own_frame']:>20,.0f}{rates['shared']:>20,.0f}")
    return "\n".join(lines)


def rollout() -> GradeSession:
    """A finished session as an environment hands it over."""
    noise = np.random.default_rng(0)
    turns = tuple(
        ChatMessage(role, "the output of a tool or what the policy said, " * 8)
        for _ in range(TURNS)
        for role in ("assistant", "tool")
    )
    task = Task("task", "source", (ChatMessage("user", "a question"),), "an answer")
    return GradeSession(
        Trajectory(
            spec=SessionSpec("session", "group", 0, "train", task, Sampling()),
            token_ids=noise.integers(0, 50_000, TOKENS, np.int32),
            logprobs=-noise.random(TOKENS, np.float32),
            loss_mask=noise.random(TOKENS) < 0.5,
            versions=noise.integers(0, 9, TOKENS, np.int32),
            turns=(),
            messages=turns,
            ending="done",
        )
    )


def codec_us(num: int = 2_000) -> float:
    """Encode, pack, unpack and decode, the best of five."""
    message = rollout()
    best_s = float("inf")
    for _ in range(5):
        began_s = time.perf_counter()
        for _ in range(num):
            payload, frames = encode(message)
            decode(unpack(pack(payload)), frames)
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s / num * 1e6


def sweep(*, total_bytes: int) -> dict[str, dict[str, float]]:
    """The same arrays inside the message, in frames of their own, and in shared memory; the sender alone decides."""
    usual = arrays.INLINE_BELOW_BYTES
    found: dict[str, dict[str, float]] = {f"{size // KIB} KiB": {} for size in SIZES}
    try:
        for way, kind, limit in WAYS:
            arrays.INLINE_BELOW_BYTES = limit
            client = headrace.Client(kind)
            for size in SIZES:
                num = max(4, min(4_000, total_bytes // size))
                client.arrays(size, max(2, num // 10))
                rates = [size * num / client.arrays(size, num) / 1e6 for _ in range(3)]
                found[f"{size // KIB} KiB"][way] = statistics.median(rates)
            client.close()
    finally:
        arrays.INLINE_BELOW_BYTES = usual
    return found


def ask_under_bulk(*, total_bytes: int) -> dict[str, Any]:
    """Round trips while arrays flow past them on the other lane. The copy of an array takes the loop of its sender for
    as long as it takes: hence by their size, and the ratio for those of CHUNK."""
    client = headrace.Client()
    found: dict[str, dict[str, float]] = {}
    try:
        for size in (CHUNK, MIB, 4 * MIB):
            client.arrays(size, 64)  # memory that is used for the first time costs more
            unloaded_s = sorted(client.asks(2_000))
            began_s = time.perf_counter()
            loaded_s = sorted(client.asks_beside(size, total_bytes // size))
            took_s = time.perf_counter() - began_s
            p99 = [times[int(len(times) * 0.99)] * 1e6 for times in (unloaded_s, loaded_s)]
            found[f"{size // KIB} KiB"] = {
                "p99_unloaded_us": p99[0],
                "p99_us": p99[1],
                "ratio": p99[1] / p99[0],
                "asks": len(loaded_s),
                "MB_per_s": total_bytes / took_s / 1e6,
            }
    finally:
        client.close()
    return {"ask_p99_under_bulk_ratio": found[f"{CHUNK // KIB} KiB"]["ratio"], "ask_under_bulk": found}


def kill_to_error(num: int) -> dict[str, float]:
    """A process with an ask pending is killed; its starter watches it by its pidfd, as a node's supervisor does."""

    async def main() -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            runtime = Runtime(ZmqNetwork(ipc_folder=folder))
            await runtime.start()
            times = [await one_kill(runtime, folder) for _ in range(num)]
            await runtime.stop()
            return times

    times = sorted(uvloop.new_event_loop().run_until_complete(main()))
    return {
        "kill_to_error_ms_p50": times[len(times) // 2] * 1e3,
        "kill_to_error_ms_p99": times[min(len(times) - 1, int(len(times) * 0.99))] * 1e3,
        "kills": num,
    }


async def one_kill(runtime: Runtime, folder: str) -> float:
    loop = asyncio.get_running_loop()
    incarnation = secrets.token_hex(8)
    command = [sys.executable, "-c", VICTIM, FOLDER, folder, str(runtime.address), incarnation]
    process = subprocess.Popen(command)  # noqa: ASYNC220 - nothing else goes on here
    descriptor = os.pidfd_open(process.pid)

    def ended() -> None:
        loop.remove_reader(descriptor)
        runtime.directory.process_down(incarnation, f"exit code {process.wait()}")

    loop.add_reader(descriptor, ended)
    context = runtime.context
    try:
        await context.group("victim").wait_for(1, timeout_s=60)
        ask = asyncio.ensure_future(context.ask("victim/0", headrace.Ping(b""), timeout_s=60))
        await asyncio.sleep(0.02)  # it has arrived
        began_s = time.perf_counter()
        process.send_signal(signal.SIGKILL)
        await ask
    except PeerLost:
        return time.perf_counter() - began_s
    finally:
        process.kill()
        os.close(descriptor)
    raise AssertionError(f"the ask of a killed process was answered ({Path(folder)})")
