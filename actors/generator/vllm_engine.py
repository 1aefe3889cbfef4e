"""vLLM behind the Engine protocol: token ids in, token ids with log-probs and versions out, weights swapped in flight.

With vllm_requests.py and vllm_transfer.py the only file that knows vLLM's API. It changes often:
tests/actors/generator/test_vllm_names.py checks every name that is used. vLLM runs in processes of its own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.actors.generator.adapter import AdapterRefused, check_version, missing_base
from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.engine_environment import engine_environment
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.generator.kv_policy import KvPolicy
from headrace.actors.generator.limits import check_request
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.actors.generator.vllm_group import WORKER, InWorkers
from headrace.actors.generator.vllm_lora import VllmLora, check_no_adapter
from headrace.actors.generator.vllm_requests import completion, sampling_params
from headrace.actors.generator.vllm_weights import BACKEND
from headrace.actors.generator.vllm_workers import VllmWorkers
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import ON_DEVICE, Expected, Manifest, WeightsMismatch, open_weights

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

_WATCH_PERIOD_S = 0.2
_CPU_BATCHED_TOKENS = 2048
_SHUTDOWN_S = 5.0


class VllmEngine:
    """model_path: a Hugging Face folder or hub name; version 0.
    dtype: "float32", "bfloat16", "auto", …; max_model_len: tokens of a sequence, None for the model's context.
    max_num_seqs: requests decoded together; further ones queue inside vLLM.
    kv_cache_gib: memory of the key-value cache on the CPU; gpu_memory_utilization: the same question on a GPU.
    kv, prefix_cache, prefix_cache_max_versions: see kv_policy.py. lora_rank: of the adapters that the learner sends;
    None: it sends full weights.
    sleep_while_training: gives weights and cache back to a learner on the same GPU between the batches of mode=sync.
    cpu_threads_bind: vLLM's own setting ("nobind", "auto", "0-1|2-3"); num_threads: OpenMP threads of a worker.
    extra: further AsyncEngineArgs, as they are.
    """

    def __init__(
        self,
        *,
        model_path: str,
        dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 128,
        kv_cache_gib: int = 1,
        gpu_memory_utilization: float = 0.9,
        tensor_parallel_size: int = 1,
        kv: str = "keep",
        prefix_cache: str = "keep",
        prefix_cache_max_versions: int | None = 8,
        lora_rank: int | None = None,
        sleep_while_training: bool = False,
        cpu_threads_bind: str = "nobind",
        num_threads: int | None = None,
        seed: int = 0,
        log_level: str = "WARNING",
        extra: dict[str, Any] | None = None,
    ) -> None:
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("kv_cache_gib", kv_cache_gib),
            ("tensor_parallel_size", tensor_parallel_size),
            ("num_threads", num_threads),
        ):
            if value is not None and value < 1:
                raise ValueError(f"generator.engine.{name} must be >= 1, got {value}")
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"generator.engine.gpu_memory_utilization must be in (0, 1], got {gpu_memory_utilization}")
        self._arguments: dict[str, Any] = {
            "model": model_path,
            "dtype": dtype,
            "max_num_seqs": max_num_seqs,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "seed": seed,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "enable_sleep_mode": sleep_while_training,
            "enable_log_requests": False,
            **(extra or {}),
        }
        self._environment = {
            "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": cpu_threads_bind,
            "VLLM_LOGGING_LEVEL": log_level,
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if num_threads is not None:
            self._environment["OMP_NUM_THREADS"] = str(num_threads)
        self.sleeps = sleep_while_training
        self._model_path = model_path
        self._max_model_len = max_model_len
        self._policy = KvPolicy(kv, prefix_cache, prefix_cache_max_versions)
        self._running = asyncio.Event()
        self._running.set()
        self._closed = threading.Event()
        self._engine: AsyncLLM | None = None
        self._expected: dict[str, Expected] = {}
        self._context_tokens = 0
        self._version = 0
        self._served: Manifest | None = None
        self._held: Manifest | None = None  # the full weights in the model; None: those of model_path
        self._lora = None if lora_rank is None else VllmLora(lora_rank)
        self._staged = StagedWeights()
        self._arriving: dict[str, Any] = {}  # where a version without a staging buffer is broadcast
        self._ranks = VllmWorkers(self._alive)
        self._callers: set[asyncio.Task[Any]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._death: str | None = "it was not started"
        self._request_numbers = itertools.count()

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_running(self) -> int:
        return len(self._callers)

    async def start(self) -> None:
        """See Engine. 20 to 40 s on a CPU."""
        started: concurrent.futures.Future[AsyncLLM] = concurrent.futures.Future()
        threading.Thread(target=self._start_in_thread, args=(started,), name="vllm-start", daemon=True).start()
        engine = await asyncio.wrap_future(started)
        if self._lora is not None:
            await self._lora.prepare(engine, None)
            await self._lora.swap(engine)
        await engine.update_weight_version("0")
        self._engine, self._death = engine, None
        self._watcher = asyncio.create_task(self._watch(), name="vllm-watch")
        self._watcher.add_done_callback(self._watch_ended)

    def _start_in_thread(self, started: concurrent.futures.Future[AsyncLLM]) -> None:
        """The thread lives as long as vLLM's processes, since a parent-death signal would fire at its end. It is
        a daemon: a process that is told to stop while vLLM starts need not wait for it."""
        try:
            engine = self._create()
        except BaseException as error:  # whatever it was, it belongs to the one who awaits the start
            if not started.cancelled():
                started.set_exception(error)
            return
        try:
            started.set_result(engine)
        except concurrent.futures.InvalidStateError:  # cancelled meanwhile
            engine.shutdown(_SHUTDOWN_S)
        else:
            self._closed.wait()

    def _create(self) -> AsyncLLM:
        with engine_environment(self._environment):
            from vllm import AsyncEngineArgs
            from vllm.config import WeightTransferConfig
            from vllm.v1.engine.async_llm import AsyncLLM

            from headrace.actors.generator.expectation import context_length, expected_weights, linear_layers

            self._context_tokens = context_length(self._model_path, self._max_model_len)
            self._expected = expected_weights(self._model_path)
            worker: dict[str, Any] = {"worker_extension_cls": WORKER}
            if self._lora is not None:
                worker = self._lora.arguments(linear_layers(self._model_path))
            arguments = AsyncEngineArgs(
                **{**_whole_prompts_on_a_cpu(self._context_tokens), **worker, **self._arguments},
                max_model_len=self._context_tokens,
                weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            )
            try:
                engine: AsyncLLM = AsyncLLM.from_engine_args(arguments)
            except RuntimeError as error:
                raise EngineDied(f"vLLM did not start with {self._model_path!r}: {error}") from error
            return engine

    async def generate(self, request: Generate) -> Completion:
        """See Engine."""
        engine = self._alive()
        check_request(request, self._context_tokens)
        params = sampling_params(request)
        task = asyncio.current_task()
        assert task is not None
        self._callers.add(task)
        try:
            await self._running.wait()  # what comes during an update belongs to the version after it, its salt too
            prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids.tolist()}
            salt = self._policy.salt(self._version)
            if salt is not None:
                prompt["cache_salt"] = salt
            request_id = f"{request.session_id}-{next(self._request_numbers)}"
            output: RequestOutput | None = None
            adapter = None if self._lora is None else self._lora.request()
            async for final in engine.generate(prompt, params, request_id, lora_request=adapter):
                output = final
        except asyncio.CancelledError:
            if self._death is not None and task.cancelling() <= 1:
                task.uncancel()  # the watcher's cancellation, not the caller's
                raise EngineDied(self._death) from None
            raise
        except Exception as error:
            if engine.errored:
                raise EngineDied(f"vLLM died: {engine.dead_error}") from error
            raise
        finally:
            self._callers.discard(task)
        if output is None:
            raise EngineDied(f"vLLM ended request {request.session_id} without an output")
        return completion(output)

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        """See Engine."""
        self._alive()
        if manifest.transport in ON_DEVICE:
            self._staged.drop()
            self._check_whole(manifest)
            timings = await self._ranks.open(manifest)
            self._staged.adopt(manifest, InWorkers())
            return timings
        if self._lora is None:
            check_no_adapter(manifest)
        else:
            self._lora.check(manifest)
        return await self._staged.stage(manifest, self._expected, self._held)

    @property
    def ranks(self) -> VllmWorkers:
        return self._ranks

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        """See CollectiveEngine."""
        self._alive()
        self._staged.drop()
        self._check_whole(manifest)
        timings = await self._ranks.receive(manifest, broadcast)
        self._staged.adopt(manifest, InWorkers())
        return timings

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        """See CollectiveEngine. The workers receive while nothing is stepped; any failure of theirs is the engine's,
        for vLLM's model is taken apart by then."""
        self._check_whole(manifest)
        self._staged.adopt(manifest, InWorkers())
        self._arriving = {"group": broadcast.group, "timeout_s": broadcast.timeout_s}
        try:
            return await self.commit_weights(manifest)
        finally:
            self._arriving = {}

    def _check_whole(self, manifest: Manifest) -> None:
        if self._lora is not None:
            raise WeightsMismatch(
                f"weights={manifest.transport} sends whole models; use weights=shm with generator.engine.lora_rank"
            )
        check_no_adapter(manifest)
        check_version(manifest, self._expected)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        """See Engine."""
        engine = self._alive()
        self._staged.of(manifest.version)
        requests_running = self.num_running
        started = time.perf_counter()
        self._running.clear()
        # As engine.pause_generation, without the 20 ms that it sleeps for the sake of tidy output order.
        await engine.engine_core.pause_scheduler_async(mode="keep", clear_cache=False)
        try:
            load_started = time.perf_counter()
            await self._load_or_restore(engine, manifest)
            load_s = time.perf_counter() - load_started
        finally:
            self._staged.drop()
        if self._policy.recompute:
            await engine.reset_prefix_cache(reset_running_requests=True)
        await self._resume(engine)
        return CommitTimings(time.perf_counter() - started, load_s, requests_running)

    async def _resume(self, engine: AsyncLLM) -> None:
        await engine.resume_generation()
        self._running.set()

    async def _load_or_restore(self, engine: AsyncLLM, manifest: Manifest) -> None:
        """The model is whole again when this returns or raises WeightsMismatch (then the old version serves on)."""
        try:
            await self._load(engine, manifest)
        except Exception as error:  # vLLM passes a worker's error on as a bare Exception
            if not isinstance(error, AdapterRefused):
                await self._restore(engine, error)
            await self._resume(engine)
            raise WeightsMismatch(
                f"version {manifest.version} failed to load, version {self._version} serves on: {error}"
            ) from error
        self._served, self._version = manifest, manifest.version

    async def _load(self, engine: AsyncLLM, manifest: Manifest) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        from headrace.actors.generator.vllm_transfer import manifest_to_dict

        if self._lora is not None:
            await self._lora.prepare(engine, manifest)
        full = manifest if manifest.adapter is None else missing_base(manifest, self._held)
        if full is not None:
            await engine.start_weight_update()
            values = {"manifest": manifest_to_dict(full), **self._arriving}
            await engine.update_weights(WeightTransferUpdateRequest(update_info=values))
            await engine.finish_weight_update()
            self._held = full
        if self._lora is not None:
            await self._lora.swap(engine)
        await engine.update_weight_version(str(manifest.version))

    async def _restore(self, engine: AsyncLLM, cause: Exception) -> None:
        """Load the version in service again; its buffer may still be there. Otherwise this engine is lost."""
        try:
            full = self._served if self._served is None or self._served.adapter is None else self._served.adapter.base
            if self._served is None or full is None:
                raise WeightsMismatch("the weights of model_path are not at hand")
            for manifest in (full, self._served):
                if manifest.transport in ON_DEVICE:
                    await self._ranks.open(manifest)
                else:
                    await asyncio.to_thread(open_weights(manifest).verify)
            self._held = None
            await self._load(engine, self._served)
        except Exception as error:
            self._die(f"vLLM's model is incomplete after a failed update ({cause}) and cannot be restored ({error})")
            raise EngineDied(str(self._death)) from cause

    async def sleep(self) -> None:
        """See SleepingEngine. Level 1: weights wait in host memory, so that a version that fails to load changes
        nothing; keys and values are dropped."""
        engine = self._alive()
        with self._or_died("fall asleep"):
            await engine.sleep(level=1)

    async def wake(self) -> None:
        """See SleepingEngine."""
        engine = self._alive()
        with self._or_died("wake"):
            if not await engine.wake_up():
                raise RuntimeError("some of its memory is still given away")

    @contextlib.contextmanager
    def _or_died(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it was, nobody knows what of its memory is there
            self._die(f"vLLM did not {what}: {error}")
            raise EngineDied(str(self._death)) from error

    async def _watch(self) -> None:
        """vLLM leaves callers waiting where its core died in some ways: look, and release them."""
        engine = self._alive()
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            handler = engine.output_handler
            if engine.errored or (handler is not None and handler.done()):
                self._die("vLLM died (its log above says why)")
                return

    def _watch_ended(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled() and watcher.exception() is not None:
            self._die(f"vLLM cannot be watched any more: {watcher.exception()!r}")

    def _die(self, why: str) -> None:
        self._death = why
        for task in tuple(self._callers):
            task.cancel()

    def _alive(self) -> AsyncLLM:
        if self._death is not None or self._engine is None:
            raise EngineDied(f"the vLLM engine cannot serve: {self._death}")
        return self._engine

    async def close(self) -> None:
        """See Engine."""
        if self._death is None:
            self._die("it was closed")
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        self._staged.drop()
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown, _SHUTDOWN_S)
        self._closed.set()


def _whole_prompts_on_a_cpu(context_tokens: int) -> dict[str, Any]:
    """A prompt that is prefilled in parts sets the generator of a seeded request back, which torch's CPU generators
    can't do: vLLM 0.32 dies of it ("CPU Generator does not use offset"). So there prompts are never split."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    return {"enable_chunked_prefill": False, "max_num_batched_tokens": max(_CPU_BATCHED_TOKENS, context_tokens)}
