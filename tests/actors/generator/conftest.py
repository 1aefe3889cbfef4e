"""A tiny Llama on disk, and a bench that drives any engine on an event loop of its own; vllm_serve.py is importable."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.actors.generator.engine import CommitTimings
from headrace.actors.messages import Completion, Generate
from headrace.actors.session import Sampling
from headrace.transport.weights import Manifest, SenderSettings, WeightSender, make_sender
from headrace.transport.weights.layout import model_tensors
from headrace.transport.weights.shm import ShmWriter

sys.path[:0] = [str(Path(__file__).parent)]

from vllm_serve import Server  # noqa: E402

torch.set_num_threads(1)


def tiny_llama(seed: int, *, tied: bool = False) -> LlamaForCausalLM:
    """The shape of the quickstart's model; weights wide enough for greedy answers that vary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, initializer_range=0.15,
        tie_word_embeddings=tied, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def models() -> dict[str, LlamaForCausalLM]:
    return {"first": tiny_llama(1), "second": tiny_llama(2)}


@pytest.fixture(scope="session")
def model_path(models: dict[str, LlamaForCausalLM], tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("models") / "first"
    models["first"].save_pretrained(path)
    return str(path)


class Bench:
    """One started engine and the learner's end of its weights."""

    def __init__(self, engine: Any, writer: WeightSender | None = None) -> None:
        self.engine = engine
        self.loop = asyncio.new_event_loop()
        self.writer = writer or ShmWriter(SenderSettings(run_id="engine-contract", bucket_bytes=4096, num_buffers=4))
        self.version = 0
        self.run(engine.start(), timeout_s=540)

    def run(self, awaitable: Awaitable[Any], timeout_s: float = 240) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(awaitable, timeout_s)

        return self.loop.run_until_complete(bounded())

    def request(self, prompt: list[int], max_tokens: int = 16, **options: Any) -> Generate:
        sampling = Sampling(max_tokens=max_tokens, **options)
        return Generate("session", np.asarray(prompt, dtype=np.int32), sampling, fresh=True)

    def generate(self, prompt: list[int], max_tokens: int = 16, **options: Any) -> Completion:
        completion: Completion = self.run(self.engine.generate(self.request(prompt, max_tokens, **options)))
        return completion

    def stage(self, tensors: dict[str, torch.Tensor]) -> Manifest:
        """The next version, staged by the learner."""
        for old in range(self.version):  # the newest stays: an engine may need it to undo a failed load
            self.writer.release(old)
        self.version += 1
        staged = self.writer.stage(tensors, version=self.version, step=self.version)
        assert staged is not None, "no buffer is free"
        return staged.seal()

    async def update(self, model: LlamaForCausalLM) -> CommitTimings:
        manifest = self.stage(model_tensors(model))
        await self.engine.stage_weights(manifest)
        timings: CommitTimings = await self.engine.commit_weights(manifest)
        return timings

    def serve(self, model: LlamaForCausalLM) -> CommitTimings:
        timings: CommitTimings = self.run(self.update(model))
        return timings

    def close(self) -> None:
        self.run(self.engine.close())
        self.writer.close()
        self.loop.close()


@pytest.fixture(scope="session")
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Benches that are closed at the end, whatever happens."""
    benches: list[Bench] = []

    def make(engine: Any, writer: WeightSender | None = None) -> Bench:
        benches.append(Bench(engine, writer))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture(scope="module")
def make_server() -> Iterator[Callable[..., Server]]:
    """A `vllm serve` of a model; it takes a minute to start, and ends with the module."""
    servers: list[Server] = []

    def make(model_path: str, *options: str) -> Server:
        servers.append(Server(model_path, options=options))
        servers[-1].start()
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def make_checkpoint_sender(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], WeightSender]:
    """Versions as folders, for an engine that reads nothing else. Closed by its bench."""

    def make() -> WeightSender:
        folder = tmp_path_factory.mktemp("weights")
        settings = SenderSettings(run_id="bench", num_buffers=4, folder=folder, model_folder=Path(model_path))
        return make_sender("checkpoint", settings)

    return make


@pytest.fixture(scope="session")
def greedy() -> Callable[[LlamaForCausalLM, list[int], int], list[int]]:
    """transformers' own greedy continuation."""

    def run(model: LlamaForCausalLM, prompt: list[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False)
        return [int(token) for token in out[0, len(prompt) :]]

    return run


@pytest.fixture(scope="session")
def forward_logprobs() -> Callable[..., np.ndarray]:
    """log_softmax(logits / temperature) of each sampled token, by one plain forward. float64[N]."""

    def run(model: LlamaForCausalLM, prompt: list[int], token_ids: Any, temperature: float) -> np.ndarray:
        tokens = [int(token) for token in token_ids]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0].double() / (temperature or 1.0)
        logprobs = logits.log_softmax(-1)
        return np.asarray([float(logprobs[len(prompt) - 1 + i, t]) for i, t in enumerate(tokens)])

    return run


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """64 prompts of 1 to 12 tokens (below vLLM's cache block); every fourth one repeats its predecessor."""
    generator = np.random.default_rng(0)
    drawn = [[int(t) for t in generator.integers(1, 128, size=generator.integers(1, 13))] for _ in range(64)]
    return [drawn[i - 1] if i % 4 == 3 else drawn[i] for i in range(64)]
