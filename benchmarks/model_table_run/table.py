"""One model by every transport: the rows of the table, and what each must hold.

By each transport the engine is given the weights "first" and then "second", and is held to both: an update that does
nothing would show what the transport before it left. By `delta` a version between them differs from "second" in few
elements, so that "second" comes as what changed.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headrace.actors.generator.engine import Engine
from headrace.transport.weights import Manifest
from headrace.transport.weights.layout import model_tensors
from model_table_run.gap import BOUND, Gap, draw_prompts, gap
from model_table_run.hosts import Hosts
from model_table_run.models import CONTEXT_TOKENS, VOCAB_SIZE, make_model

logger = logging.getLogger(__name__)

FIRST_SEED, SECOND_SEED, OTHER_SEED = 1, 2, 3
_CHANGED_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """tensors, nbytes: of one version, tied names not counted twice. max_gap, mean_gap: of |Δ log-prob| of
    `num_tokens` sampled tokens, the worse of "first" and "second". received: what the relay says of "second".
    problem: why there is no gap, or what else is wrong."""

    model: str
    transport: str
    tensors: int
    nbytes: int
    max_gap: float
    mean_gap: float
    num_tokens: int
    bound: float
    ok: bool
    received: dict[str, float]
    problem: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def run_model(name: str, transports: Sequence[str], row_done: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """Starts one vLLM. Takes less than a minute."""

    async def run(folder: Path) -> list[Row]:
        async with started(name, folder) as hosts:
            return await rows_of(hosts, name, transports, row_done)

    with tempfile.TemporaryDirectory(prefix="headrace-model-table-") as folder:
        return asyncio.run(run(Path(folder)))


async def rows_of(
    hosts: Hosts, name: str, transports: Sequence[str], row_done: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """One after the other, by an engine of that model."""
    first, second = make_model(name, FIRST_SEED), make_model(name, SECOND_SEED)
    rows = []
    for transport in transports:
        rows.append(await _row(hosts, name, transport, first, second))
        row_done(rows[-1])
    return rows


def started(name: str, folder: Path) -> Hosts:
    """To be entered: vLLM then serves other weights than the table's, those of a third seed."""
    path = folder / "model"
    make_model(name, OTHER_SEED).save_pretrained(path)
    return Hosts(make_engine(path), model_path=path, folder=folder)


def make_engine(model_path: Path) -> Engine:
    from headrace.actors.generator.vllm_engine import VllmEngine

    return VllmEngine(
        model_path=str(model_path), dtype="float32", max_model_len=CONTEXT_TOKENS, max_num_seqs=16, num_threads=1,
        prefix_cache="salt", log_level="ERROR",
    )  # fmt: skip


async def _row(hosts: Hosts, name: str, transport: str, first: nn.Module, second: nn.Module) -> Row:
    sent = [first, second] if transport != "delta" else [first, nearly(second), second]
    gaps: list[Gap] = []
    manifest: Manifest | None = None
    problem = ""
    try:
        async with hosts.transport(transport):
            for model in sent:
                manifest = await hosts.serve(model_tensors(model))
                gaps.append(gap(model, await hosts.sample(draw_prompts(VOCAB_SIZE))))
    except Exception as error:  # the other transports have their rows all the same
        logger.exception("%s by %s", name, transport)
        problem = f"{type(error).__name__}: {error}"
    received = hosts.monitor.relayed.get(manifest.version, {}) if manifest is not None else {}
    problem = problem or _wrong_way(transport, manifest, received)
    return Row(
        model=name,
        transport=transport,
        tensors=0 if manifest is None else len(manifest.tensors),
        nbytes=0 if manifest is None else manifest.nbytes,
        max_gap=max((found.largest for found in gaps), default=float("nan")),
        mean_gap=max((found.mean for found in gaps), default=float("nan")),
        num_tokens=sum(found.num_tokens for found in gaps),
        bound=BOUND,
        ok=not problem and all(found.ok for found in gaps),
        received=received,
        problem=problem,
    )


def _wrong_way(transport: str, manifest: Manifest | None, received: dict[str, float]) -> str:
    """What shows that the version did not come as the row says."""
    if manifest is None or transport not in ("stream", "delta"):
        return ""
    kind = {"stream": "full", "delta": "delta"}[transport]
    if received.get(f"buckets_{kind}") != len(manifest.buckets):
        return f"of {len(manifest.buckets)} buckets {received.get(f'buckets_{kind}')} came as {kind!r}"
    return ""


def nearly(model: nn.Module) -> nn.Module:
    """A copy that differs in few elements of every tensor, by much."""
    near = copy.deepcopy(model)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in near.parameters():
            chosen = torch.rand(parameter.shape, generator=random) < _CHANGED_SHARE
            parameter[chosen] *= -1
    return near
