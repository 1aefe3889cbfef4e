"""An unmodified `vllm serve` that somebody else runs, behind the Engine protocol: everything goes over its HTTP API.

What it serves is loaded from folders that both sides can read: the run's model at the start, later each version of
`weights=checkpoint`; with `weights=nccl` versions come by a broadcast. Nothing is believed that it can't show: every
token's version is the label that this engine gave to the weights after it had loaded them, with a prefix of its own. A
server that was restarted, or that somebody else steers too, labels differently, and that ends this engine: its
successor waits for the server and loads anew.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.actors.generator import vllm_server_arrival
from headrace.actors.generator.adapter import check_version
from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.engine_environment import secret
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.generator.kv_policy import KvPolicy
from headrace.actors.generator.limits import check_request
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.actors.generator.vllm_lora import check_no_adapter
from headrace.actors.generator.vllm_server_checks import Wanted
from headrace.actors.generator.vllm_server_client import ServerGone, ServerRefused, ServerWantsKey, VllmServerClient
from headrace.actors.generator.vllm_server_life import ServerLife
from headrace.actors.generator.vllm_server_nccl import ServerRanks
from headrace.actors.generator.vllm_server_requests import ForeignLabel, completion, request_body
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import Expected, Manifest, WeightsMismatch
from headrace.transport.weights.collective import COLLECTIVE
from headrace.transport.weights.collective.communicator import GroupBroken

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDERS = "checkpoint"
_API_KEY_ENV = "generator.engine.api_key_env"


class VllmServerEngine:
    """url: "http://127.0.0.1:8000". model_path: the run's model, a folder that the server can read under the same name;
    version 0. transport: `weights.transport`. api_key_env: the name of the environment variable that has its API key.
    lora_rank: of the adapters that the learner sends; must be None.
    dtype, max_model_len: what the server must have been started with; "auto": any, None: the model's context.
    kv, prefix_cache, prefix_cache_max_versions: see kv_policy.py.
    start_timeout_s: for the server to come up, also again after a restart. request_timeout_s: for one generation.
    update_timeout_s: for one loading of weights. watch_period_s: how often the server is asked whether it is the same.
    """

    def __init__(
        self,
        *,
        url: str,
        model_path: str,
        transport: str = FOLDERS,
        api_key_env: str | None = None,
        lora_rank: int | None = None,
        dtype: str = "auto",
        max_model_len: int | None = None,
        kv: str = "keep",
        prefix_cache: str = "keep",
        prefix_cache_max_versions: int | None = 8,
        start_timeout_s: float = 540.0,
        request_timeout_s: float = 600.0,
        update_timeout_s: float = 120.0,
        watch_period_s: float = 2.0,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"generator.engine.url must be http://HOST:PORT of a `vllm serve`, got {url!r}")
        if transport not in (FOLDERS, COLLECTIVE):
            raise ValueError(
                f"generator.engine=vllm_server takes weights by folder or by NCCL: weights.transport must be {FOLDERS} "
                f"or {COLLECTIVE}, got {transport!r}; add weights={FOLDERS}"
            )
        if lora_rank is not None:
            raise ValueError(
                f"generator.engine=vllm_server takes no adapters, got lora_rank={lora_rank} (from learner.lora); "
                "choose learner/lora=none, or generator/engine=vllm"
            )
        if api_key_env is not None and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", api_key_env) is None:
            raise ValueError(
                f"{_API_KEY_ENV} must be the name of an environment variable, got something else, which is not "
                "repeated here in case it is the key itself"
            )
        for name, value in (
            ("start_timeout_s", start_timeout_s),
            ("request_timeout_s", request_timeout_s),
            ("update_timeout_s", update_timeout_s),
            ("watch_period_s", watch_period_s),
        ):
            if not value > 0:
                raise ValueError(f"generator.engine.{name} must be > 0 seconds, got {value}")
        self._client = VllmServerClient(
            url,
            control_timeout_s=min(30.0, update_timeout_s),
            update_timeout_s=update_timeout_s,
            request_timeout_s=request_timeout_s,
        )
        self._model_path = model_path
        self._transport = transport
        self._api_key_env = api_key_env
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._policy = KvPolicy(kv, prefix_cache, prefix_cache_max_versions)
        self._start_timeout_s = start_timeout_s
        self._life = ServerLife(self._client, watch_period_s)
        self._ranks = ServerRanks(self._client, self._life)
        self._folder = model_path
        self._expected: Mapping[str, Expected] = {}
        self._context_tokens = 0
        self._staged = StagedWeights()
        self._num_running = 0
        self._serving = asyncio.Event()

    @property
    def version(self) -> int:
        return self._life.version

    @property
    def num_running(self) -> int:
        return self._num_running

    @property
    def ranks(self) -> ServerRanks:
        """See CollectiveEngine."""
        return self._ranks

    async def start(self) -> None:
        """See Engine. Raises EngineDied where the server can't be reached, ValueError where it can't do what is needed,
        with the command line of one that can."""
        if self._api_key_env is not None:
            self._client.authorize(secret(self._api_key_env, _API_KEY_ENV))
        await asyncio.to_thread(self._read_model)
        wanted = Wanted(self._folder, self._dtype, self._context_tokens, self._transport, self._api_key_env)
        await vllm_server_arrival.until_up(self._client, wanted, self._start_timeout_s)
        try:
            await vllm_server_arrival.check(self._client, wanted, self._config())
            await self._client.pause()
            if self._transport == COLLECTIVE:
                await self._ranks.make_whole()
            await self._load(self._folder, await self._client.label(), 0)
            await self._client.resume()
        except ServerGone as error:
            raise EngineDied(f"the vLLM server went away while it was prepared: {error}") from error
        except ServerRefused as error:
            raise ValueError(
                f"the vLLM server at {self._client.url} did not load {self._folder} ({error}); it must read the run's "
                "folder under the same name. Its model is incomplete now: restart it"
            ) from error
        self._life.begin()
        self._serving.set()

    async def generate(self, request: Generate) -> Completion:
        """See Engine."""
        self._life.check()
        check_request(request, self._context_tokens)
        self._num_running += 1
        try:
            return await self._life.unless_dead(self._generate(request))
        finally:
            self._num_running -= 1

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        """See Engine. The server reads the files by itself, at the commit: here they are verified."""
        self._life.check()
        check_no_adapter(manifest)
        if manifest.transport != FOLDERS:
            raise WeightsMismatch(
                f"version {manifest.version} came by {manifest.transport}; a vLLM server takes weights={FOLDERS} or "
                f"weights={COLLECTIVE}"
            )
        return await self._staged.stage(manifest, self._expected)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        """See Engine."""
        self._life.check()
        self._staged.of(manifest.version)
        try:
            timings, refused = await self._life.unless_dead(self._switch(manifest, self._load_or_restore))
        finally:
            self._staged.drop()
        if refused is not None:
            raise WeightsMismatch(
                f"version {manifest.version} failed to load, version {self.version} serves on: {refused}"
            ) from refused
        return timings

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        """Never: its workers have no buffer for a version that is not loaded yet (see Ranks.kind)."""
        raise WeightsMismatch(
            f"version {manifest.version} can't be staged at a vLLM server; it is loaded as it arrives"
        )

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        """See CollectiveEngine. vLLM checks no checksum of what it receives."""
        self._life.check()
        check_no_adapter(manifest)
        check_version(manifest, self._expected)
        self._ranks.check_joined(broadcast.group)

        async def receive(manifest: Manifest) -> ServerRefused | None:
            self._life.check_label(await self._client.label(), self._life.label(self.version))
            await self._ranks.receive(manifest, broadcast, self._life.label(manifest.version))
            self._life.version = manifest.version
            return None

        try:
            async with asyncio.timeout(broadcast.timeout_s):
                timings, _ = await self._life.unless_dead(self._switch(manifest, receive))
        except TimeoutError as error:
            text = (
                f"version {manifest.version} had not arrived after {broadcast.timeout_s:.3g} s, its model is incomplete"
            )
            raise self._life.dies(text) from error
        return timings

    async def close(self) -> None:
        """See Engine. The server goes on, with the weights that it has."""
        await self._life.end()
        self._staged.drop()
        await self._client.close()

    # --- the start ---------------------------------------------------------------------------------------------------

    def _read_model(self) -> None:
        from headrace.actors.generator.expectation import context_length, expected_weights

        self._context_tokens = context_length(self._model_path, self._max_model_len)
        self._expected = expected_weights(self._model_path)
        if Path(self._model_path).is_dir():
            self._folder = str(Path(self._model_path).resolve())

    def _config(self) -> dict[str, Any]:
        from headrace.actors.generator.expectation import read_config

        config: dict[str, Any] = read_config(self._model_path).to_dict()  # type: ignore[attr-defined]
        return config

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _generate(self, request: Generate) -> Completion:
        await self._serving.wait()  # what comes during an update belongs to the version after it, its salt too
        body = request_body(request, self._policy.salt(self.version))
        try:
            answer = await self._client.generate(body)
            return completion(answer, request, self._life.prefix)
        except ServerWantsKey as error:
            raise self._life.dies(f"the vLLM server has another API key now: {error}") from error
        except ServerRefused as error:
            if error.status < 500:
                raise ValueError(f"session {request.session_id}: {error}") from error
            raise self._life.dies(f"the vLLM server failed: {error}") from error
        except ServerGone as error:
            raise self._life.dies(f"the vLLM server went away: {error}") from error
        except ForeignLabel as error:
            raise self._life.dies(self._life.replaced(str(error))) from error

    # --- weights -----------------------------------------------------------------------------------------------------

    async def _switch(
        self, manifest: Manifest, load: Callable[[Manifest], Awaitable[ServerRefused | None]]
    ) -> tuple[CommitTimings, ServerRefused | None]:
        """Pause, load, resume. `load` returns why the old version serves on, or None."""
        requests_running = self._num_running
        started = time.perf_counter()
        self._serving.clear()
        try:
            await self._client.pause()
            load_started = time.perf_counter()
            refused = await load(manifest)
            load_s = time.perf_counter() - load_started
            if self._policy.recompute and refused is None:
                await self._client.recompute()
            await self._client.resume()
        except (ServerGone, ServerRefused, GroupBroken) as error:
            text = f"the vLLM server failed while version {manifest.version} was loaded: {error}"
            raise self._life.dies(text) from error
        self._serving.set()
        return CommitTimings(time.perf_counter() - started, load_s, requests_running), refused

    async def _load_or_restore(self, manifest: Manifest) -> ServerRefused | None:
        """Why the old version is loaded again; None where the new one is loaded."""
        label = self._life.label(self.version)
        try:
            await self._load(manifest.location, label, manifest.version)
        except ServerRefused as refused:
            await self._load(self._folder, label, self.version)
            return refused
        self._folder, self._life.version = manifest.location, manifest.version
        return None

    async def _load(self, folder: str, label: str, version: int) -> None:
        """Between pause and resume. The label that was there before must be there still: it is one process's, so that
        who loaded is who is labelled."""
        await self._client.reload(folder)
        self._life.check_label(await self._client.label(), label)
        await self._client.set_label(self._life.label(version))
