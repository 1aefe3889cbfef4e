"""What is measured of Headrace alone: the codec on a rollout, the sizes of arrays, bulk beside round trips, deaths."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
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
        f"ask p99 while arrays of 4 MiB flow past: {found['ask_p99_under_bulk_us']:.0f} µs, "
        f"{found['ask_p99_under_bulk_ratio']:.1f} × unloaded",
        f"SIGKILL to the error at the caller: p50 {found['kill_to_error_ms_p50']:.1f} ms, "
        f"p99 {found['kill_to_error_ms_p99']:.1f} ms ({found['kills']} kills)",
        "",
        f"{'array':>10}{'in the message, MB/s':>24}{'frame of its own, MB/s':>26}",
    ]
    for size, rates in found["array_sweep_MB_per_s"].items():
        lines.append(f"{size:>10}{rates['inline']:>24,.0f}{rates['own_frame']:>26,.0f}")
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
    """The same arrays inside the message and in frames of their own; the sender alone decides."""
    client = headrace.Client()
    usual = arrays.INLINE_BELOW_BYTES
    found: dict[str, dict[str, float]] = {}
    try:
        for size in SIZES:
            num = max(4, min(4_000, total_bytes // size))
            rates = {}
            for mode, limit in (("inline", INLINE_ALL), ("own_frame", FRAME_ALL)):
                arrays.INLINE_BELOW_BYTES = limit
                client.arrays(size, max(2, num // 10))
                rates[mode] = size * num / client.arrays(size, num) / 1e6
            found[f"{size // KIB} KiB"] = rates
    finally:
        arrays.INLINE_BELOW_BYTES = usual
        client.close()
    return found


def ask_under_bulk(*, total_bytes: int) -> dict[str, float]:
    client = headrace.Client()
    try:
        client.asks(200)
        unloaded_s = sorted(client.asks(2_000))
        loaded_s = sorted(client.asks_beside(4 * MIB, total_bytes // (4 * MIB)))
    finally:
        client.close()
    p99 = [times[int(len(times) * 0.99)] * 1e6 for times in (unloaded_s, loaded_s)]
    return {
        "ask_p99_unloaded_us": p99[0],
        "ask_p99_under_bulk_us": p99[1],
        "ask_p99_under_bulk_ratio": p99[1] / p99[0],
        "asks_under_bulk": len(loaded_s),
    }


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
    await context.group("victim").wait_for(1, timeout_s=60)
    ask = asyncio.ensure_future(context.ask("victim/0", headrace.Ping(b""), timeout_s=60))
    await asyncio.sleep(0.02)  # it has arrived
    began_s = time.perf_counter()
    process.send_signal(signal.SIGKILL)
    try:
        await ask
    except PeerLost:
        return time.perf_counter() - began_s
    finally:
        os.close(descriptor)
    raise AssertionError(f"the ask of a killed process was answered ({Path(folder)})")
