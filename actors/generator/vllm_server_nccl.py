"""The workers of a foreign `vllm serve` in a collective broadcast: ranks of vLLM's own NCCL back-end, moved over HTTP.

The server needs `--weight-transfer-config '{"backend": "nccl"}'`. Rank 0 is the learner, which makes the unique id and
sends (transport's vllm_native.py); nothing here moves a byte. All ranks enter together: the parameter server's rounds
ask both sides at once, each within its deadline.

What nobody can do is to end a worker that waits in NCCL for a rank that is gone. Then the server is lost: the engine
ends, and its successor waits until somebody has restarted it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine
from typing import Any

from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.generator.vllm_server_client import ANSWER_S, ServerGone, ServerRefused, VllmServerClient
from headrace.actors.generator.vllm_server_life import ServerLife
from headrace.actors.messages import JoinGroup
from headrace.transport.weights import Manifest
from headrace.transport.weights.collective import VLLM
from headrace.transport.weights.collective.communicator import GroupBroken

UNIQUE_ID_BYTES = 128
_NOT_BEGUN, _JOINING, _JOINED = 0, 1, 2
_ALREADY = "already active"
"""of what vLLM says to a second /start_weight_update"""


def init_info(unique_id: bytes, *, world_size: int) -> dict[str, Any]:
    """vLLM's NCCLWeightTransferInitInfo. unique_id: ncclGetUniqueId's. world_size: with rank 0."""
    if len(unique_id) != UNIQUE_ID_BYTES:
        raise ValueError(f"a NCCL unique id has {UNIQUE_ID_BYTES} bytes, got {len(unique_id)}")
    return {
        "nccl_unique_id_b64": base64.b64encode(unique_id).decode("ascii"),
        "rank_offset": 1,
        "world_size": world_size,
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


class ServerRanks:
    """See Ranks. One group at a time, with the learner alone; the calls raise EngineDied where the server is lost."""

    kind = VLLM

    def __init__(self, client: VllmServerClient, life: ServerLife) -> None:
        self._client = client
        self._life = life
        self._group = ""
        self._place = _NOT_BEGUN
        self._in_one = True  # a group that an engine before this one has left behind
        self._aborted = ""
        self._work: asyncio.Future[None] | None = None

    async def count(self) -> int:
        """Raises EngineDied where the server is another one. Its engine's process has answered."""
        self._life.check()
        try:
            found = await self._client.label()
            self._life.check_label(found, self._life.label(self._life.version))
            return await self._client.world_size()
        except (ServerGone, ServerRefused) as error:
            raise self._life.dies(f"the vLLM server went away: {error}") from error

    async def join(self, message: JoinGroup) -> None:
        """Raises ValueError where the server says no: it serves on."""
        self._life.check()
        if message.group == self._aborted:
            raise GroupBroken(f"group {message.group} was aborted before it was joined")
        info = init_info(message.unique_id, world_size=message.world_size)
        self._group, self._place = message.group, _JOINING
        try:
            if self._in_one:
                await self._until_aborted(self._client.end_transfer())
            self._in_one = True
            timeout_s = min(message.timeout_s, self._client.update_timeout_s)
            await self._until_aborted(self._client.init_transfer(info, timeout_s))
        except ServerRefused as error:
            raise ValueError(f"the vLLM server at {self._client.url} joined no group: {error}") from error
        except ServerGone as error:
            raise self._life.dies(f"the vLLM server did not join group {message.group}: {error}") from error
        except GroupBroken:
            await self._check_answers(message.group)
            raise
        self._place = _JOINED

    async def receive(self, manifest: Manifest, broadcast: Broadcast, label: str) -> None:
        """Between pause and resume: receive, load and label. Raises ServerGone, ServerRefused, GroupBroken, at which
        the model is incomplete."""
        await self._start()
        self.check_joined(broadcast.group)  # an abort may have come meanwhile
        timeout_s = min(broadcast.timeout_s, self._client.update_timeout_s)
        await self._until_aborted(self._client.update(update_info(manifest), timeout_s))
        await self._client.finish_update(label)

    def check_joined(self, group: str) -> None:
        """Raises GroupBroken."""
        if group != self._group or self._place != _JOINED:
            raise GroupBroken(f"the vLLM server is in no group {group}; it was aborted, or joined by an earlier engine")

    async def abort(self, group: str) -> int:
        """What the server's workers wait for there they wait for still: see above."""
        self._aborted = group
        if group != self._group:
            return _NOT_BEGUN
        place, self._place, self._group = self._place, _NOT_BEGUN, ""
        if self._work is not None:
            self._work.cancel()
        return place

    async def make_whole(self) -> None:
        """End an update that an earlier engine left half done: what vLLM holds of it would be mixed with the next.
        What had not arrived keeps its old weights; all must be loaded anew."""
        await self._start()
        await self._client.finish_update()

    async def _check_answers(self, group: str) -> None:
        """After a join that was aborted: its workers may wait for the others for ever."""
        try:
            await self._client.label(min(ANSWER_S, self._client.update_timeout_s))
        except (ServerGone, ServerRefused) as error:
            raise self._life.dies(f"the vLLM server did not come out of group {group}: {error}") from error

    async def _start(self) -> None:
        try:
            await self._client.start_update()
        except ServerRefused as error:
            if _ALREADY not in str(error):
                raise
            await self._client.finish_update()
            await self._client.start_update()

    async def _until_aborted(self, call: Coroutine[Any, Any, None]) -> None:
        group = self._group
        self._work = asyncio.ensure_future(call)
        try:
            await self._work
        except asyncio.CancelledError:
            if self._aborted == group:
                raise GroupBroken(f"group {group} was aborted") from None
            raise
        finally:
            self._work = None
