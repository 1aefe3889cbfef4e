"""A peer that answers as vLLM 0.32's HTTP API does, and does wrong what a test tells it to. No model: token i is i."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

SETTINGS: dict[str, Any] = {
    "model_config": {
        "logprobs_mode": "processed_logprobs", "max_model_len": 512, "dtype": "torch.float32", "quantization": None,
    },
    "scheduler_config": {"enable_chunked_prefill": False},
    "device_config": {"device": "cpu"},
}  # fmt: skip
STRUCTURE = (
    "LlamaForCausalLM()(\n  (model): LlamaModel()(\n    (embed_tokens): VocabParallelEmbedding(num_embeddings=128, "
    "embedding_dim=64, org_vocab_size=128, tp_size=1)\n    (layers): ModuleList()(\n      (0-1): 2 x LlamaDecoderLayer"
)


class ScriptedVllmServer:
    """`calls`: (route, body) in order. `before`: by route, what happens before it is answered (raise web.HTTPException
    to refuse, await to be slow)."""

    def __init__(self) -> None:
        self.label = "default"
        self.folder = "its own"
        self.paused = False
        self.kept_alive = False
        self.api_key = ""
        self.keys: list[str | None] = []
        self.calls: list[tuple[str, Any]] = []
        self.before: dict[str, Callable[[Any], Any]] = {}
        self.settings = SETTINGS
        self.url = ""
        self._runner: web.AppRunner | None = None

    def restart(self) -> None:
        """As a new process: its own model, and no label."""
        self.label, self.folder, self.paused = "default", "its own", False

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{route:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def routes(self) -> list[str]:
        return [route for route, _ in self.calls]

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        route = request.path
        self.kept_alive |= request.keep_alive
        self.keys.append(request.headers.get("Authorization"))
        if self.api_key and route.startswith("/inference") and self.keys[-1] != f"Bearer {self.api_key}":
            raise web.HTTPUnauthorized(text="Unauthorized")
        self.calls.append((route, body))
        if route in self.before:
            happened = self.before[route](body)
            if asyncio.iscoroutine(happened):
                await happened
        answer = getattr(self, f"_{route.strip('/').replace('/', '_')}")(body)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return web.json_response(answer)

    def _health(self, body: Any) -> Any:
        return {}

    def _server_info(self, body: Any) -> Any:
        return {"vllm_config": self.settings}

    def _collective_rpc(self, body: Any) -> Any:
        if body["method"] == "reload_weights":
            assert self.paused, "vLLM dies where weights change under its steps"
            self.folder = body["kwargs"]["weights_path"]
            return {"results": [None]}
        return {"results": [STRUCTURE]}

    def _pause(self, body: Any) -> Any:
        self.paused = True

    def _resume(self, body: Any) -> Any:
        self.paused = False

    def _weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def _update_weight_version(self, body: Any) -> Any:
        self.label = body["new_version"]

    def _inference_v1_generate(self, body: Any) -> Any:
        if not body:
            raise web.HTTPBadRequest(text="token_ids is missing")
        tokens = list(range(body["sampling_params"]["max_tokens"]))
        return {
            "prompt_logprobs": None,
            "choices": [
                {
                    "finish_reason": "length",
                    "token_ids": tokens,
                    "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in tokens]},
                    "weight_versions": [{"version": self.label, "start": 0, "end": len(tokens)}],
                }
            ],
        }
