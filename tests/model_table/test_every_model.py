"""The table itself: every model by every transport into a real vLLM, held to plain transformers token by token."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from model_table_run.gap import BOUND, draw_prompts, gap
from model_table_run.hosts import TRANSPORTS
from model_table_run.models import CONFIGS, VOCAB_SIZE, make_model
from model_table_run.table import SECOND_SEED, Row, rows_of, started

from headrace.transport.weights.layout import model_tensors

ONE, OTHER = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight"


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_transport(name: str, tmp_path: Path) -> None:
    """And last an update whose keys and values are interchanged, as a fused weight that is put together wrongly would
    have them: it is far out of bound."""
    pytest.importorskip("vllm")
    second = make_model(name, SECOND_SEED)

    async def run() -> tuple[list[Row], float]:
        async with started(name, tmp_path) as hosts:
            rows = await rows_of(hosts, name, TRANSPORTS)
            async with hosts.transport("shm"):
                tensors = model_tensors(second)
                await hosts.serve({**tensors, ONE: tensors[OTHER].clone(), OTHER: tensors[ONE].clone()})
                return rows, gap(second, await hosts.sample(draw_prompts(VOCAB_SIZE))).largest

    rows, interchanged = asyncio.run(run())
    assert [row.transport for row in rows] == list(TRANSPORTS)
    assert [row for row in rows if not row.ok] == []
    assert interchanged > 100 * BOUND
