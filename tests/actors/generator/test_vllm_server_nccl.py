"""The HTTP half of vLLM's own NCCL back-end: vLLM's own classes parse what is sent, and the calls run beside rank 0."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

pytest.importorskip("aiohttp")

from scripted_vllm_server import ScriptedVllmServer

from headrace.actors.generator.vllm_server_client import ServerGone, ServerRefused, VllmServerClient
from headrace.actors.generator.vllm_server_nccl import init_info, join, update, update_info
from headrace.transport.weights import Manifest
from headrace.transport.weights.layout import build_layout

UNIQUE_ID = bytes(range(128))


def manifest_of(tensors: dict[str, torch.Tensor]) -> Manifest:
    layout = build_layout(tensors)
    sums = (0,) * len(layout.bounds)
    return layout.manifest(version=7, step=7, transport="nccl", location="", checksums=sums)


def tensors() -> dict[str, torch.Tensor]:
    embedding = torch.zeros(4, 2, dtype=torch.bfloat16)
    return {"embed": embedding, "norm": torch.zeros(2), "head": embedding}


@pytest.mark.vllm
def test_vllm_parses_what_is_sent() -> None:
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    engine = object.__new__(nccl.NCCLWeightTransferEngine)
    parsed = engine.parse_init_info(init_info(UNIQUE_ID, server_world_size=3))
    assert parsed.nccl_unique_id_bytes == UNIQUE_ID
    assert (parsed.rank_offset, parsed.world_size, parsed.packed) == (1, 4, False)
    parsed = engine.parse_update_info(update_info(manifest_of(tensors())))
    assert parsed.names == ["embed", "norm"], "what is tied is sent once"
    assert [getattr(torch, name) for name in parsed.dtype_names] == [torch.bfloat16, torch.float32]
    assert parsed.shapes == [[4, 2], [2]]


def test_an_id_of_the_wrong_length() -> None:
    with pytest.raises(ValueError, match="has 128 bytes, got 4"):
        init_info(b"1234", server_world_size=1)


def play(script: Callable[[ScriptedVllmServer, VllmServerClient], Awaitable[None]]) -> None:
    async def scene() -> None:
        server = ScriptedVllmServer()
        await server.start()
        client = VllmServerClient(server.url, control_timeout_s=10, update_timeout_s=10, request_timeout_s=10)
        try:
            await script(server, client)
        finally:
            await client.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(scene(), 30))


@pytest.mark.parametrize("route", ["/init_weight_transfer_engine", "/update_weights"])
def test_neither_side_waits_for_the_other_to_begin(route: str) -> None:
    """All ranks enter together: the server answers only when rank 0 is there, and rank 0 gets there only beside it."""

    async def script(server: ScriptedVllmServer, client: VllmServerClient) -> None:
        served, entered = asyncio.Event(), asyncio.Event()

        async def rank_1(body: Any) -> None:
            served.set()
            await entered.wait()

        async def rank_0() -> None:
            await served.wait()
            entered.set()

        server.before[route] = rank_1
        if route == "/update_weights":
            await update(client, manifest_of(tensors()), "x/7", rank_0())
            assert server.routes == ["/start_weight_update", "/update_weights", "/finish_weight_update"]
            assert server.label == "x/7"
        else:
            await join(client, UNIQUE_ID, rank_0())
            assert server.calls[-1][1]["init_info"]["world_size"] == 3

    play(script)


def test_a_rank_0_that_never_ends_is_left_at_the_deadline() -> None:
    async def script(server: ScriptedVllmServer, client: VllmServerClient) -> None:
        client.update_timeout_s = 0.3

        async def hangs() -> None:
            await asyncio.sleep(3600)

        with pytest.raises(ServerGone, match=r"rank 0 did not come to an end within 0\.3 s"):
            await update(client, manifest_of(tensors()), "x/7", hangs())
        assert server.label == "default"

    play(script)


def test_a_side_that_fails_ends_the_other() -> None:
    async def script(server: ScriptedVllmServer, client: VllmServerClient) -> None:
        async def hang(body: Any) -> None:
            await asyncio.sleep(3600)

        async def breaks() -> None:
            raise ConnectionError("rank 0 was aborted")

        server.before["/update_weights"] = hang
        with pytest.raises(ConnectionError, match="rank 0 was aborted"):
            await update(client, manifest_of(tensors()), "x/7", breaks())
        assert server.label == "default", "what did not arrive is not labelled"

        def refuse(body: Any) -> None:
            from aiohttp import web

            raise web.HTTPInternalServerError(text="Weight transfer not configured")

        ended = asyncio.Event()

        async def waits() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

        server.before["/update_weights"] = refuse
        with pytest.raises(ServerRefused, match="Weight transfer not configured"):
            await update(client, manifest_of(tensors()), "x/7", waits())
        assert ended.is_set()

    play(script)
