"""An unmodified `vllm serve` that somebody else runs, behind the Engine protocol: everything goes over its HTTP API.

What it serves is loaded from folders that both sides can read: the run's model at the start, later each version of
`weights=checkpoint`. Nothing is believed that it can't show: every token's version is the label that this engine gave
to the weights after it had loaded them, with a prefix of its own. A server that was restarted, or that somebody else
steers too, labels differently, and that ends this engine: its successor waits for the server and loads anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.kv_policy import KvPolicy
from headrace.actors.generator.limits import check_request
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.actors.generator.vllm_lora import check_no_adapter
from headrace.actors.generator.vllm_server_checks import command_line, is_cpu, problems, structure_problems
from headrace.actors.generator.vllm_server_client import ServerGone, ServerRefused, VllmServerClient
from headrace.actors.generator.vllm_server_requests import ForeignLabel, completion, request_body
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import Expected, Manifest, WeightsMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")
TRANSPORT = "checkpoint"
_KNOCK_PERIOD_S = 1.0


class VllmServerEngine:
    """url: "http://127.0.0.1:8000". model_path: the run's model, a folder that the server can read under the same name;
    version 0. transport: `weights.transport`.
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
        transport: str = TRANSPORT,
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
        if transport != TRANSPORT:
            raise ValueError(
                f"generator.engine=vllm_server loads weights from folders: weights.transport must be {TRANSPORT}, got "
                f"{transport!r}; add weights={TRANSPORT}"
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
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._policy = KvPolicy(kv, prefix_cache, prefix_cache_max_versions)
        self._start_timeout_s = start_timeout_s
        self._watch_period_s = watch_period_s
        self._prefix = f"{secrets.token_hex(4)}/"
        self._version = 0
        self._folder = model_path
        self._expected: Mapping[str, Expected] = {}
        self._context_tokens = 0
        self._staged = StagedWeights()
        self._num_running = 0
        self._death: str | None = "it was not started"
        self._died = asyncio.Event()
        self._serving = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_running(self) -> int:
        return self._num_running

    async def start(self) -> None:
        """See Engine. Raises EngineDied where the server can't be reached, ValueError where it can't do what is needed,
        with the command line of one that can."""
        await asyncio.to_thread(self._read_model)
        await self._until_up()
        try:
            await self._check_server()
            await self._client.pause()
            found = await self._client.label()
            await self._load(self._folder, found, 0)
            await self._client.resume()
        except ServerGone as error:
            raise EngineDied(f"the vLLM server went away while it was prepared: {error}") from error
        except ServerRefused as error:
            raise ValueError(
                f"the vLLM server at {self._client.url} did not load {self._folder} ({error}); it must read the run's "
                "folder under the same name. Its model is incomplete now: restart it"
            ) from error
        self._death = None
        self._serving.set()
        self._watcher = asyncio.create_task(self._watch(), name="vllm-server-watch")
        self._watcher.add_done_callback(self._watch_ended)

    async def generate(self, request: Generate) -> Completion:
        """See Engine."""
        self._check_alive()
        check_request(request, self._context_tokens)
        self._num_running += 1
        try:
            return await self._unless_dead(self._generate(request))
        finally:
            self._num_running -= 1

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        """See Engine. The server reads the files by itself, at the commit: here they are verified."""
        self._check_alive()
        check_no_adapter(manifest)
        if manifest.transport != TRANSPORT:
            raise WeightsMismatch(
                f"version {manifest.version} came by {manifest.transport}; a vLLM server takes weights={TRANSPORT}"
            )
        return await self._staged.stage(manifest, self._expected)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        """See Engine."""
        self._check_alive()
        self._staged.of(manifest.version)
        return await self._unless_dead(self._commit(manifest))

    async def close(self) -> None:
        """See Engine. The server goes on, with the weights that it has."""
        self._die("it was closed")
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        self._staged.drop()
        await self._client.close()

    # --- the start ---------------------------------------------------------------------------------------------------

    def _read_model(self) -> None:
        from headrace.actors.generator.expectation import context_length, expected_weights

        self._context_tokens = context_length(self._model_path, self._max_model_len)
        self._expected = expected_weights(self._model_path)
        if Path(self._model_path).is_dir():
            self._folder = str(Path(self._model_path).resolve())

    async def _until_up(self) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while True:
                    if await self._client.is_up():
                        return
                    await asyncio.sleep(_KNOCK_PERIOD_S)
        except TimeoutError:
            raise EngineDied(
                f"no vLLM server answered at {self._client.url} within {self._start_timeout_s:g} s; start one: "
                f"{self._command(cpu=False)}"
            ) from None
        except ServerRefused as error:
            raise ValueError(f"{self._client.url} is no vLLM server: {error}") from error

    async def _check_server(self) -> None:
        try:
            settings = await self._client.settings()
        except ServerRefused as error:
            raise ValueError(
                f"the server at {self._client.url} lets nobody steer it ({error}); start it in development mode: "
                f"{self._command(cpu=False)}"
            ) from error
        found = problems(settings, dtype=self._dtype, context_tokens=self._context_tokens)
        if not await self._client.takes_token_ids():
            found.append("it has no /inference/v1/generate, tokens in and tokens out")
        found += structure_problems(await self._client.model_structure(), self._config())
        if found:
            raise ValueError(
                f"the vLLM server at {self._client.url} does not fit this run: {'; '.join(found)}. Start it as: "
                f"{self._command(cpu=is_cpu(settings))}"
            )

    def _config(self) -> dict[str, Any]:
        from headrace.actors.generator.expectation import read_config

        config: dict[str, Any] = read_config(self._model_path).to_dict()  # type: ignore[attr-defined]
        return config

    def _command(self, *, cpu: bool) -> str:
        return command_line(self._folder, self._dtype, self._context_tokens, cpu=cpu)

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _generate(self, request: Generate) -> Completion:
        await self._serving.wait()  # what comes during an update belongs to the version after it, its salt too
        body = request_body(request, self._policy.salt(self._version))
        try:
            answer = await self._client.generate(body)
            return completion(answer, request, self._prefix)
        except ServerRefused as error:
            if error.status < 500:
                raise ValueError(f"session {request.session_id}: {error}") from error
            raise self._dies(f"the vLLM server failed: {error}") from error
        except ServerGone as error:
            raise self._dies(f"the vLLM server went away: {error}") from error
        except ForeignLabel as error:
            raise self._dies(self._replaced(str(error))) from error

    # --- weights -----------------------------------------------------------------------------------------------------

    async def _commit(self, manifest: Manifest) -> CommitTimings:
        requests_running = self._num_running
        started = time.perf_counter()
        self._serving.clear()
        try:
            await self._client.pause()
            load_started = time.perf_counter()
            refused = await self._load_or_restore(manifest)
            load_s = time.perf_counter() - load_started
            if self._policy.recompute and refused is None:
                await self._client.recompute()
            await self._client.resume()
        except (ServerGone, ServerRefused) as error:
            raise self._dies(f"the vLLM server failed while version {manifest.version} was loaded: {error}") from error
        finally:
            self._staged.drop()
        self._serving.set()
        if refused is not None:
            raise WeightsMismatch(
                f"version {manifest.version} failed to load, version {self._version} serves on: {refused}"
            ) from refused
        return CommitTimings(time.perf_counter() - started, load_s, requests_running)

    async def _load_or_restore(self, manifest: Manifest) -> ServerRefused | None:
        """Why the old version is loaded again; None where the new one is loaded."""
        label = self._label(self._version)
        try:
            await self._load(manifest.location, label, manifest.version)
        except ServerRefused as refused:
            await self._load(self._folder, label, self._version)
            return refused
        self._folder, self._version = manifest.location, manifest.version
        return None

    async def _load(self, folder: str, label: str, version: int) -> None:
        """Between pause and resume. The label that was there before must be there still: it is one process's, so that
        who loaded is who is labelled."""
        await self._client.reload(folder)
        found = await self._client.label()
        if found != label:
            raise self._dies(self._replaced(found))
        await self._client.set_label(self._label(version))

    def _label(self, version: int) -> str:
        return f"{self._prefix}{version}"

    def _replaced(self, label: str) -> str:
        return (
            f"the vLLM server at {self._client.url} was restarted, or somebody else steers it too: its tokens are of "
            f"{label!r}, not of {self._label(self._version)!r}"
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Also where no request asks: whether the server is there, and the one that was loaded."""
        while True:
            await asyncio.sleep(self._watch_period_s)
            try:
                label = await self._client.label()
            except (ServerGone, ServerRefused) as error:
                return self._die(f"the vLLM server went away: {error}")
            if not label.startswith(self._prefix):
                return self._die(self._replaced(label))

    def _watch_ended(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled() and watcher.exception() is not None:
            self._die(f"the vLLM server cannot be watched any more: {watcher.exception()!r}")

    async def _unless_dead(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result, or EngineDied as soon as this engine dies. Cancelling this cancels the work."""
        task = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self._check_alive()
            return await task
        finally:
            for pending in (task, death):
                pending.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDied(f"the vLLM server cannot serve: {self._death}")

    def _dies(self, why: str) -> EngineDied:
        self._die(why)
        return EngineDied(f"the vLLM server cannot serve: {self._death}")

    def _die(self, why: str) -> None:
        if not self._died.is_set():
            self._death = why
        self._died.set()
