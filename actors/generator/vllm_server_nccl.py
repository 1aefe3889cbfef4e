"""New weights into a foreign `vllm serve` by vLLM's own NCCL back-end, without a torch rendezvous: the HTTP half.

The server needs `--weight-transfer-config '{"backend": "nccl"}'`. Rank 0 is the learner's side, which makes the unique
id; the server's workers are ranks 1 and up. All ranks enter together, and the broadcasts run while `/update_weights` is
out: so each call here is given what the learner's side does meanwhile. One that fails ends the other, and the model may
then be broken: load it anew or restart the server.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable
from typing import Any

from headrace.actors.generator.vllm_server_client import ServerGone, VllmServerClient
from headrace.transport.weights import Manifest

UNIQUE_ID_BYTES = 128


def init_info(unique_id: bytes, *, server_world_size: int) -> dict[str, Any]:
    """vLLM's NCCLWeightTransferInitInfo: unique_id is ncclGetUniqueId's."""
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"a NCCL unique id has {UNIQUE_ID_BYTES} bytes, got {len(unique_id)}")
    return {
        "nccl_unique_id_b64": base64.b64encode(unique_id).decode("ascii"),
        "rank_offset": 1,
        "world_size": 1 + server_world_size,
        "packed": False,
    }


def update_info(manifest: Manifest) -> dict[str, Any]:
    """vLLM's NCCLWeightTransferUpdateInfo: one broadcast for each tensor, in the manifest's order; tied names are
    loaded by vLLM itself."""
    return {
        "names": [spec.name for spec in manifest.tensors],
        "dtype_names": [spec.dtype for spec in manifest.tensors],
        "shapes": [list(spec.shape) for spec in manifest.tensors],
    }


async def join(client: VllmServerClient, unique_id: bytes, joining: Awaitable[None]) -> None:
    """Make the group. `joining`: rank 0's initialisation, and then the one-element float32 all-reduce that vLLM's
    workers begin with."""
    info = init_info(unique_id, server_world_size=await client.world_size())
    await _together(client.init_transfer(info), joining, client.update_timeout_s)


async def update(client: VllmServerClient, manifest: Manifest, label: str, broadcasting: Awaitable[None]) -> None:
    """Between pause and resume. `broadcasting`: every tensor of the manifest, in its order, from rank 0."""
    await client.start_update()
    await _together(client.update(update_info(manifest)), broadcasting, client.update_timeout_s)
    await client.finish_update(label)


async def _together(served: Awaitable[None], sent: Awaitable[None], timeout_s: float) -> None:
    """Until both are done; the first that fails ends the other, and is what is raised. Raises ServerGone where one is
    still out at the deadline."""
    tasks = [asyncio.ensure_future(served), asyncio.ensure_future(sent)]
    try:
        done, out = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        if out:
            late = "the server's workers" if tasks[0] in out else "rank 0"
            raise ServerGone(f"{late} did not come to an end within {timeout_s:g} s")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
