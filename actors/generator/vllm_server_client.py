"""The HTTP calls of a `vllm serve` that somebody else runs: one method a route, each with a deadline.

Knows routes and errors, no weights and no versions. Called by vllm_server_engine.py and vllm_server_nccl.py.
Routes: vllm/entrypoints/rl/online (pause, resume, update), serve/dev (collective_rpc, server_info, reset_prefix_cache:
VLLM_SERVER_DEV_MODE=1) and scale_out/token_in_token_out (generate: --enable-scale-out), as of vLLM 0.32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientSession

_CONNECT_S = 10.0
ANSWER_S = 10.0
"""for an engine's process that is not held up: see VllmServerClient.label"""


class ServerGone(ConnectionError):
    """No answer: nobody listens, the connection broke, or the deadline passed."""


class ServerRefused(RuntimeError):
    """An answer that says no."""

    def __init__(self, route: str, status: int, text: str) -> None:
        super().__init__(f"{route} answered {status}: {text[:2000]}")
        self.status = status


class ServerWantsKey(ServerRefused):
    """Its API key (`vllm serve --api-key`) is another, or none was sent."""


class VllmServerClient:
    """url: "http://host:port". control_timeout_s: of calls that are quick; update_timeout_s: of those that wait for the
    engine or load weights; request_timeout_s: of one generation. Every method raises ServerGone, ServerRefused or
    ServerWantsKey."""

    def __init__(
        self, url: str, *, control_timeout_s: float, update_timeout_s: float, request_timeout_s: float
    ) -> None:
        self.url = url.rstrip("/")
        self._control_s = control_timeout_s
        self.update_timeout_s = update_timeout_s
        self._request_s = request_timeout_s
        self._headers: dict[str, str] = {}
        self._session: ClientSession | None = None

    def authorize(self, api_key: str) -> None:
        """Goes with every call, and nowhere else."""
        self._headers = {"Authorization": f"Bearer {api_key}"}

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Token ids in, token ids out. Cancelling it closes the connection, at which the server aborts the request."""
        answer: dict[str, Any] = await self._call("POST", "/inference/v1/generate", body, timeout_s=self._request_s)
        return answer

    async def is_up(self) -> bool:
        """Raises ServerRefused where something else listens there."""
        try:
            await self._call("GET", "/health", timeout_s=_CONNECT_S)
        except ServerGone:
            return False
        except ServerRefused as error:
            if error.status == 503:  # it starts, or its engine is ending
                return False
            raise
        return True

    async def settings(self) -> dict[str, Any]:
        """vLLM's own configuration, as plain data."""
        answer = await self._call("GET", "/server_info?config_format=json", timeout_s=self.update_timeout_s)
        config: dict[str, Any] = answer["vllm_config"]
        return config

    async def takes_token_ids(self) -> bool:
        try:
            await self._call("POST", "/inference/v1/generate", {})
        except ServerWantsKey:
            raise
        except ServerRefused as error:
            return error.status != 404
        return True

    async def model_structure(self) -> str:
        """The tree of modules of one worker, as text."""
        found: str = (await self._rpc("get_model_inspection"))[0]
        return found

    async def world_size(self) -> int:
        return int((await self._call("GET", "/get_world_size"))["world_size"])

    async def pause(self) -> None:
        """Requests in flight stay where they are, later ones queue."""
        await self._call("POST", "/pause?mode=keep&clear_cache=false", timeout_s=self.update_timeout_s)

    async def resume(self) -> None:
        await self._call("POST", "/resume")

    async def reload(self, folder: str) -> None:
        """Load a folder in Hugging Face format that the server can read. Where this is refused the model is broken
        until a later reload succeeds."""
        await self._rpc("reload_weights", weights_path=folder)

    async def label(self, timeout_s: float | None = None) -> str:
        """What its tokens are labelled with; "default" until somebody sets it. It is the engine's process that says
        so, which a worker that hangs holds up."""
        answer = await self._call("GET", "/weight_info", timeout_s=timeout_s or self.update_timeout_s)
        return str(answer["weight_version"])

    async def set_label(self, label: str) -> None:
        await self._call("POST", "/update_weight_version", {"new_version": label})

    async def recompute(self) -> None:
        """Forget every key and value, those of requests in flight too."""
        await self._call("POST", "/reset_prefix_cache?reset_running_requests=true")

    async def init_transfer(self, init_info: dict[str, Any], timeout_s: float) -> None:
        """Every worker joins the group; their steps wait meanwhile."""
        await self._call("POST", "/init_weight_transfer_engine", {"init_info": init_info}, timeout_s=timeout_s)

    async def end_transfer(self) -> None:
        """Every worker leaves its group, if it is in one."""
        await self._call("POST", "/shutdown_weight_transfer_engine", timeout_s=self.update_timeout_s)

    async def start_update(self) -> None:
        """The model is taken apart, layer by layer."""
        await self._call("POST", "/start_weight_update", timeout_s=self.update_timeout_s)

    async def update(self, update_info: dict[str, Any], timeout_s: float) -> None:
        """Every worker receives and loads."""
        await self._call("POST", "/update_weights", {"update_info": update_info}, timeout_s=timeout_s)

    async def finish_update(self, label: str | None = None) -> None:
        """What did not arrive keeps its old weights. label: see `label`."""
        body = {"weight_version": label}
        await self._call("POST", "/finish_weight_update", body, timeout_s=self.update_timeout_s)

    async def close(self) -> None:
        """Every call under way ends. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _rpc(self, method: str, **arguments: str) -> list[Any]:
        body = {"method": method, "kwargs": arguments}
        results: list[Any] = (await self._call("POST", "/collective_rpc", body, timeout_s=self.update_timeout_s))[
            "results"
        ]
        return results

    async def _call(
        self, method: str, route: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "generator/engine=vllm_server needs aiohttp, not installed here: pip install 'headrace[vllm-server]'"
            ) from error

        if self._session is None:
            # No limit of its own: the actor's mailbox bounds the requests. A connection for each: the server closes
            # idle ones after 5 s, and a request that is under way just then would look as if the server had gone.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        total_s = self._control_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=min(_CONNECT_S, total_s))
        try:
            async with self._session.request(
                method, self.url + route, json=body, timeout=timeout, headers=self._headers
            ) as answer:
                if answer.status == 401:
                    raise ServerWantsKey(route, 401, await answer.text())
                if answer.status != 200:
                    raise ServerRefused(route, answer.status, await answer.text())
                return await answer.json() if answer.content_type == "application/json" else await answer.text()
        except TimeoutError as error:
            raise ServerGone(f"{self.url}{route} gave no answer within {total_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGone(f"{self.url}{route}: {type(error).__name__}: {error}") from error
