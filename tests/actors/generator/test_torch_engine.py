"""What only the torch engine can show: its thread's death, a tied model, a reader that was too slow, settings."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.torch_engine import TorchEngine
from headrace.transport.weights import SenderSettings
from headrace.transport.weights.layout import model_tensors
from headrace.transport.weights.shm import ShmWriter


def test_a_dead_engine_fails_every_caller(make_bench: Any, model_path: str, prompts: Any) -> None:
    bench = make_bench(TorchEngine(model_path=model_path, max_batch=4))

    async def die() -> Any:
        running = [asyncio.ensure_future(bench.engine.generate(bench.request(p, 400))) for p in prompts[:8]]
        await asyncio.sleep(0)

        def break_the_thread() -> None:
            raise MemoryError("no memory for the next step")

        bench.engine._post(break_the_thread)
        return await asyncio.gather(*running, return_exceptions=True)

    ended = bench.run(die())
    assert [type(end) for end in ended] == [EngineDied] * 8
    assert "MemoryError: no memory" in str(ended[0])
    with pytest.raises(EngineDied, match="no memory"):
        bench.generate([1, 2], 4)


def test_closing_fails_what_is_pending(make_bench: Any, model_path: str, prompts: Any) -> None:
    bench = make_bench(TorchEngine(model_path=model_path))

    async def close() -> Any:
        running = asyncio.ensure_future(bench.engine.generate(bench.request(prompts[0], 480)))
        await asyncio.sleep(0)
        await bench.engine.close()
        await bench.engine.close()
        return await asyncio.gather(running, return_exceptions=True)

    assert isinstance(bench.run(close())[0], EngineDied)


def test_a_tied_model_follows_its_embedding(make_bench: Any, tmp_path: Any, greedy: Any, prompts: Any) -> None:
    """cases D79: PrimeIntellect-ai/prime-rl#2438. After an update the logits are those of a fresh model."""
    from transformers import LlamaForCausalLM

    config = LlamaForCausalLM.config_class(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1, head_dim=32,
        tie_word_embeddings=True, initializer_range=0.2, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(3)
    old, new = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    old.save_pretrained(tmp_path)
    bench = make_bench(TorchEngine(model_path=str(tmp_path), max_model_len=64))
    manifest = bench.stage(model_tensors(new))
    assert manifest.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    bench.run(bench.engine.stage_weights(manifest))
    bench.run(bench.engine.commit_weights(manifest))
    prompt = [token % 64 for token in prompts[0]]
    assert bench.generate(prompt, 12, temperature=0.0).token_ids.tolist() == greedy(new, prompt, 12)


def test_bytes_overwritten_under_a_slow_reader_end_the_engine(
    make_bench: Any, model_path: str, models: Any, prompts: Any
) -> None:
    """Taken for gone, its buffer released and reused between stage and commit: it must not serve the mixture."""
    bench = make_bench(TorchEngine(model_path=model_path))
    writer = ShmWriter(SenderSettings(run_id="slow-reader", num_buffers=1))
    staged = writer.stage(model_tensors(models["second"]), version=1, step=1)
    assert staged is not None
    manifest = staged.seal()
    bench.run(bench.engine.stage_weights(manifest))
    writer.release(1)
    writer.stage(model_tensors(models["first"]), version=2, step=2)
    with pytest.raises(EngineDied, match="holds version 2, not version 1"):
        bench.run(bench.engine.commit_weights(manifest))
    with pytest.raises(EngineDied):
        bench.generate(prompts[0], 4)
    writer.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be float32, bfloat16 or float64, got 'int8'"),
        ({"max_batch": 0}, "max_batch must be >= 1, got 0"),
        ({"num_threads": 0}, "num_threads must be >= 1, got 0"),
    ],
)
def test_settings_are_checked_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TorchEngine(model_path="anywhere", **options)


def test_a_missing_model_says_where_it_looked() -> None:
    async def start() -> None:
        await TorchEngine(model_path="/no/such/model").start()

    with pytest.raises(ValueError, match="'/no/such/model'"):
        asyncio.run(start())


def test_a_load_that_fails_in_any_way_ends_the_start(model_path: str, tmp_path: Path) -> None:
    """Damaged weights raise an error of safetensors' own kind: who awaits the start once waited for ever."""
    damaged = shutil.copytree(model_path, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"no weights")

    async def start() -> None:
        async with asyncio.timeout(60):
            await TorchEngine(model_path=str(damaged)).start()

    with pytest.raises(Exception, match=r"(?i)safetensor|header") as error:
        asyncio.run(start())
    assert not isinstance(error.value, TimeoutError)


def test_a_context_beyond_the_models_is_refused(model_path: str) -> None:
    async def start() -> None:
        await TorchEngine(model_path=model_path, max_model_len=513).start()

    with pytest.raises(ValueError, match="max_model_len must be <= 512"):
        asyncio.run(start())
