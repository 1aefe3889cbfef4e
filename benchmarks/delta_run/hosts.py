"""The processes of the two hosts: real parameter server and sender; real relay; real generator and engine under load.

    python -m delta_run.hosts learner|relay|engine SETTINGS.json

The learner's replays versions that were trained before; everybody else is as in any run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.actors.generator.actor import Generator
from headrace.actors.messages import Generate, Metrics, PublishWeights, VersionServed, WeightsReleased
from headrace.actors.parameter_server.actor import ParameterServer
from headrace.actors.relay.actor import Relay
from headrace.actors.session import Sampling
from headrace.transport import Actor, CurveKeys, Runtime, TransportError, ZmqNetwork, handles
from headrace.transport.weights import SenderSettings, make_sender
from headrace.transport.weights.layout import unflatten

START_S = 300.0
UPDATE_S = 300.0


class Listener(Actor):
    def __init__(self, release: Any) -> None:
        self._release = release
        self.served = 0
        self.pauses: dict[int, dict[str, float]] = {}
        self.relayed: dict[int, dict[str, float]] = {}

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> None:
        self.served = message.version

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> None:
        self._release(message.version)

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        where = {"weights": self.pauses, "weights/relay-0": self.relayed}.get(message.stream)
        if where is not None:
            where[int(message.step)] = message.values


async def learner(settings: dict[str, Any]) -> None:
    from delta_run.versions import BUCKET_BYTES  # its imports are heavy

    keys = CurveKeys.make()
    keys.write(Path(settings["keys"]))
    runtime = Runtime(ZmqNetwork(bind=f"tcp://{settings['address']}", keys=keys), node=settings["node"])
    await runtime.start()
    sender = make_sender(
        "stream",
        SenderSettings(run_id=settings["run_id"], bucket_bytes=BUCKET_BYTES, num_buffers=2, node=settings["node"]),
    )
    listener = Listener(sender.release)
    for name in ("monitor/0", "dispatcher/0", "learner/0"):
        await runtime.add(listener if name != "dispatcher/0" else Listener(lambda version: None), name)
    server = ParameterServer(stage_timeout_s=UPDATE_S, commit_timeout_s=UPDATE_S)
    await runtime.add(server, "parameter_server/0")
    write(settings["directory"], str(runtime.address))
    await runtime.context.group("generator").wait_for(1, timeout_s=START_S)
    rows = []
    for version, one in enumerate(settings["versions"], start=1):
        manifest, buffer = load(Path(one["path"]))
        tensors = dict(unflatten(manifest, torch.from_numpy(buffer), include_tied=True))
        staged = sender.stage(tensors, version=version, step=version)
        assert staged is not None, "the version before the last one was released long ago"
        sealed = staged.seal()
        began_s = time.perf_counter()
        await runtime.context.ask("parameter_server/0", PublishWeights(sealed), timeout_s=30)
        while listener.served < version:
            if time.perf_counter() - began_s > UPDATE_S:
                raise TimeoutError(f"version {version} was not served within {UPDATE_S:g} s")
            await asyncio.sleep(0.002)
        rows.append(
            {"version": version, "lr": one["lr"], "first": one["first"], "update_s": time.perf_counter() - began_s}
        )
        await asyncio.sleep(1.0)  # the engine decodes between two updates
    for row in rows:
        row |= {
            "pause_s": listener.pauses[row["version"]]["pause_s"],
            "load_s": listener.pauses[row["version"]]["load_s"],
        }
        row |= {f"relay_{k}": v for k, v in listener.relayed.get(row["version"], {}).items()}
    write(settings["out"], json.dumps(rows))
    await runtime.stop()
    sender.close()


def load(path: Path) -> tuple[Any, np.ndarray]:
    saved = torch.load(path, weights_only=False)  # our own file
    return saved["manifest"], saved["buffer"].numpy()


async def relay(settings: dict[str, Any]) -> None:
    runtime = await join(settings)
    options = {"delta": settings["delta"], "full_every": 1_000_000}
    await runtime.add(Relay(run_id=f"{settings['run_id']}-far", **options), "relay/0")
    await until_sigterm()
    await runtime.stop()


async def engine(settings: dict[str, Any]) -> None:
    runtime = await join(settings)
    await runtime.add(Generator(engine=make_engine(settings)), "generator/0")
    load = [asyncio.create_task(ask_on(runtime, number)) for number in range(settings["in_flight"])]
    await until_sigterm()
    for task in load:
        task.cancel()
    await runtime.stop()


def make_engine(settings: dict[str, Any]) -> Any:
    options = {"model_path": settings["model"], "dtype": "bfloat16", "max_model_len": 512, "num_threads": 1}
    if settings["engine"] == "vllm":
        from headrace.actors.generator.vllm_engine import VllmEngine

        return VllmEngine(**options, max_num_seqs=64, kv_cache_gib=1)
    from headrace.actors.generator.torch_engine import TorchEngine

    return TorchEngine(**options)


async def ask_on(runtime: Runtime, number: int) -> None:
    rng = np.random.default_rng(number)
    while True:
        prompt = rng.integers(100, 1000, 8).astype(np.int32)
        request = Generate(f"load-{number}", prompt, Sampling(temperature=1.0, max_tokens=32, seed=number))
        try:
            await runtime.context.ask("generator/0", request, timeout_s=600.0)
        except TransportError:
            await asyncio.sleep(1.0)


async def join(settings: dict[str, Any]) -> Runtime:
    directory = await asyncio.to_thread(read_when_there, settings["directory"])
    network = ZmqNetwork(bind=f"tcp://{settings['address']}", keys=CurveKeys.read(Path(settings["keys"])))
    runtime = Runtime(network, directory=directory, node=settings["node"])
    await runtime.start()
    return runtime


def write(path: str, text: str) -> None:
    """Whole or not at all."""
    partial = Path(f"{path}.partial")
    partial.write_text(text)
    partial.rename(path)


def read_when_there(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    return Path(path).read_text()


async def until_sigterm() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    await stopping.wait()


if __name__ == "__main__":
    role = {"learner": learner, "relay": relay, "engine": engine}[sys.argv[1]]
    asyncio.run(role(json.loads(Path(sys.argv[2]).read_text())))
    os._exit(0)  # an engine's threads need not be waited for
