"""A scripted vLLM server whose workers really join groups and receive, in the order of vLLM 0.32's own nccl back-end
(gpu_worker.py, nccl_engine.py): over nccl_twin, in threads. They hold what came; tests look at it, and do harm."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import nccl_twin
import torch
from aiohttp import web
from scripted_vllm_server import SETTINGS, ScriptedVllmServer

from headrace.transport.weights.collective.communicator import Communicator

SETTINGS_WITH_GPUS: dict[str, Any] = {
    **SETTINGS,
    "device_config": {"device": "cuda"},
    "weight_transfer_config": {"backend": "nccl"},
}
_JOIN_S = _RECEIVE_S = 30.0


class ScriptedVllmWorkers(ScriptedVllmServer):
    """`weights`: by worker, name → tensor, as loaded last. `at_tensor`: (worker, index) → what happens before that
    tensor is received, in the worker's thread. `mixed`: half of an update is there that no load would clear away."""

    def __init__(self, num_workers: int = 2) -> None:
        super().__init__()
        self.settings = SETTINGS_WITH_GPUS
        self.num_workers = num_workers
        self.weights: list[dict[str, torch.Tensor]] = [{} for _ in range(num_workers)]
        self.at_tensor: dict[tuple[int, int], Callable[[], None]] = {}
        self.active = self.mixed = False
        self._received: list[dict[str, torch.Tensor]] = []
        self._communicators: list[Communicator] = []
        self._pool = ThreadPoolExecutor(num_workers)
        self._one_call = asyncio.Lock()

    def restart(self) -> None:
        super().restart()
        self.active = self.mixed = False
        self.weights = [{} for _ in range(self.num_workers)]
        self._one_call = asyncio.Lock()  # whoever held it is gone
        self._leave()

    async def stop(self) -> None:
        await super().stop()
        self._leave()
        self._pool.shutdown(wait=False)

    async def hang(self, body: Any = None) -> None:
        """For `before`: workers that wait in NCCL, and so does whoever asks the engine for anything."""
        async with self._one_call:
            await asyncio.sleep(3600)

    # --- what waits for the workers, as everything does that goes to vLLM's engine ------------------------------------

    async def _weight_info(self, body: Any) -> Any:
        async with self._one_call:
            return super()._weight_info(body)

    async def _pause(self, body: Any) -> None:
        async with self._one_call:
            super()._pause(body)

    async def _collective_rpc(self, body: Any) -> Any:
        async with self._one_call:
            if body["method"] == "reload_weights":
                assert not self.mixed, "vLLM would take what is left of the last update for a part of this load"
                self.weights = [{} for _ in range(self.num_workers)]
            return super()._collective_rpc(body)

    def _inference_v1_generate(self, body: Any) -> Any:
        in_pieces = self.active or self.mixed
        assert not in_pieces
        return super()._inference_v1_generate(body)

    # --- vllm/entrypoints/rl/online/api_router.py ---------------------------------------------------------------------

    def _get_world_size(self, body: Any) -> Any:
        return {"world_size": self.num_workers}

    async def _init_weight_transfer_engine(self, body: Any) -> None:
        info = body["init_info"]
        unique_id = base64.b64decode(info["nccl_unique_id_b64"], validate=True)

        def join(worker: int) -> Communicator:
            communicator = nccl_twin.join(
                unique_id, rank=info["rank_offset"] + worker, world_size=info["world_size"], device="cpu",
                deadline_s=time.monotonic() + _JOIN_S, bucket_bytes=0, cancelled=threading.Event(),
            )  # fmt: skip
            communicator.all_reduce_one(time.monotonic() + _JOIN_S)
            return communicator

        assert not self._communicators, "the group of before was not left"
        self._communicators = await self._in_workers(join)

    def _shutdown_weight_transfer_engine(self, body: Any) -> None:
        if self.active:
            raise web.HTTPInternalServerError(text="Cannot release a trainer connection during a weight update")
        self._leave()

    def _start_weight_update(self, body: Any) -> None:
        if self.active:
            raise web.HTTPInternalServerError(
                text="start_weight_update called while a weight update is already active. Call finish_weight_update"
            )
        assert self.paused, "vLLM dies where weights change under its steps"
        self.active = True

    async def _update_weights(self, body: Any) -> None:
        if not self.active:
            raise web.HTTPInternalServerError(text="start_weight_update must be called before update_weights.")
        if not self._communicators:
            self.active = False
            raise web.HTTPInternalServerError(text="NCCL weight transfer not initialized.")
        info = body["update_info"]

        def receive(worker: int) -> dict[str, torch.Tensor]:
            found = {}
            for index, name in enumerate(info["names"]):
                self.at_tensor.get((worker, index), lambda: None)()
                tensor = torch.empty(info["shapes"][index], dtype=getattr(torch, info["dtype_names"][index]))
                flat = tensor.view(-1).view(torch.uint8)
                self._communicators[worker].broadcast(flat).wait(time.monotonic() + _RECEIVE_S)
                found[name] = tensor
                self.mixed = True
            return found

        try:
            self._received = await self._in_workers(receive)
        except BaseException:
            self.active = False
            raise

    def _finish_weight_update(self, body: Any) -> None:
        if not self.active:
            raise web.HTTPInternalServerError(text="finish_weight_update called without a matching start_weight_update")
        self.active = self.mixed = False
        for weights, received in zip(self.weights, self._received, strict=False):
            weights.update(received)
        self._received = []
        if body["weight_version"] is not None:
            self.label = body["weight_version"]

    async def _in_workers(self, work: Callable[[int], Any]) -> list[Any]:
        loop = asyncio.get_running_loop()
        async with self._one_call:
            calls = [loop.run_in_executor(self._pool, work, worker) for worker in range(self.num_workers)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise web.HTTPInternalServerError(text=f"Worker failed with error '{result}'")
        return results

    def _leave(self) -> None:
        for communicator in self._communicators:
            communicator.destroy()
        self._communicators = []
