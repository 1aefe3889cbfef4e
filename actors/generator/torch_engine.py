"""A plain transformers model behind the Engine protocol: for laptops, evaluation and tests. Runs on the CPU.

One thread owns the model and steps the decoder; the event loop's side posts commands that the thread executes between
two decode steps (a request joins, a request leaves, new weights), and gets finished requests back. The queue of
commands has no bound of its own: each sender awaits its answer, and the actor's mailbox bounds the senders.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headrace.actors.generator.adapter import AdapterRefused, check_version
from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.group_ranks import Broadcast, LocalRank
from headrace.actors.generator.kv_policy import KvPolicy
from headrace.actors.generator.limits import check_request
from headrace.actors.generator.staged_weights import StagedWeights
from headrace.actors.messages import Completion, Generate
from headrace.transport.weights import Expected, Manifest, WeightReceiver, WeightsMismatch
from headrace.transport.weights.collective.communicator import GroupBroken

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from headrace.actors.generator.decoder import Decoder, Sequence
    from headrace.actors.generator.torch_weights import TorchWeights

T = TypeVar("T")


class TorchEngine:
    """model_path: a Hugging Face folder or hub name; version 0.
    dtype: of weights and computation ("float32", "bfloat16"); max_model_len: tokens of a sequence, None: the model's.
    max_batch: sequences decoded together, further ones wait; max_prefill_tokens: padded prompt tokens of one prefill.
    kv: see kv_policy.py; no prefix is cached across requests.
    num_threads: of the model's computation. On cores that other processes use too, 1 is much faster than 2.
    """

    def __init__(
        self,
        *,
        model_path: str,
        dtype: str = "float32",
        max_model_len: int | None = None,
        max_batch: int = 128,
        max_prefill_tokens: int = 4096,
        kv: str = "keep",
        num_threads: int = 1,
    ) -> None:
        if dtype not in ("float32", "bfloat16", "float64"):
            raise ValueError(f"generator.engine.dtype must be float32, bfloat16 or float64, got {dtype!r}")
        for name, value in (
            ("max_batch", max_batch),
            ("max_prefill_tokens", max_prefill_tokens),
            ("num_threads", num_threads),
            ("max_model_len", max_model_len),
        ):
            if value is not None and value < 1:
                raise ValueError(f"generator.engine.{name} must be >= 1, got {value}")
        self._model_path = model_path
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._max_batch = max_batch
        self._max_prefill_tokens = max_prefill_tokens
        self._policy = KvPolicy(kv)
        self._num_threads = num_threads
        self._version = 0
        self._pending: set[asyncio.Future[Completion]] = set()
        self._staged = StagedWeights()
        self._rank = LocalRank()
        self._expected: dict[str, Expected] = {}
        self._context_tokens = 0
        self._death: str | None = "it was not started"
        self._stopping = False
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: Manifest | None = None  # the full weights in the model; None: those of model_path
        self._model: PreTrainedModel | None = None
        self._weights: TorchWeights | None = None
        self._decoder: Decoder | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_running(self) -> int:
        return len(self._pending)

    @property
    def ranks(self) -> LocalRank:
        return self._rank

    async def start(self) -> None:
        """See Engine."""
        self._loop = asyncio.get_running_loop()
        self._death = None
        started: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="torch-engine", daemon=True)
        self._thread.start()
        await started

    async def generate(self, request: Generate) -> Completion:
        """See Engine. `fresh` needs nothing: no prefix is cached across requests."""
        from headrace.actors.generator.decoder import Sequence

        loop = self._alive()
        check_request(request, self._context_tokens)
        future: asyncio.Future[Completion] = loop.create_future()
        sequence = Sequence(request.prompt_token_ids.tolist(), request.sampling, tag=future)
        self._pending.add(future)
        self._post(lambda: self._owned_decoder().add(sequence))
        try:
            completion = await future
            if not request.prompt_logprobs:
                return completion
            scored: asyncio.Future[np.ndarray] = loop.create_future()
            self._post(lambda: self._answer(scored, self._score(request.prompt_token_ids)))
            return replace(completion, prompt_logprobs=await self._unless_dead(scored))
        except asyncio.CancelledError:
            self._post(lambda: self._owned_decoder().discard(sequence))
            raise
        finally:
            self._pending.discard(future)

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        """See CollectiveEngine."""
        self._alive()
        return await self._staged.receive(manifest, self._expected, self._rank, broadcast)

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        """See Engine."""
        self._alive()
        return await self._staged.stage(manifest, self._expected, self._held)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        """See Engine."""
        loop = self._alive()
        staged = self._staged.of(manifest.version)
        requests_running = self.num_running
        done: asyncio.Future[float] = loop.create_future()
        started = time.perf_counter()
        self._post(lambda: self._commit(done, manifest, staged))
        try:
            load_s = await self._unless_dead(done)
        finally:
            self._staged.drop()
        return CommitTimings(time.perf_counter() - started, load_s, requests_running)

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        """See CollectiveEngine. The thread that decodes receives: nothing is decoded meanwhile."""
        loop = self._alive()
        check_version(manifest, self._expected)
        requests_running = self.num_running
        done: asyncio.Future[float] = loop.create_future()
        started = time.perf_counter()
        self._post(lambda: self._receive(done, manifest, broadcast))
        load_s = await self._unless_dead(done)
        return CommitTimings(time.perf_counter() - started, load_s, requests_running)

    async def close(self) -> None:
        """See Engine."""
        self._rank.close()
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._die("it was closed")
        self._staged.drop()
        self._model = self._decoder = None

    # --- the event loop's side ---------------------------------------------------------------------------------------

    def _alive(self) -> asyncio.AbstractEventLoop:
        if self._death is not None or self._loop is None:
            raise EngineDied(f"the torch engine cannot serve: {self._death}")
        return self._loop

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    async def _unless_dead(self, done: asyncio.Future[T]) -> T:
        """Wait for an answer that never comes where the thread dies first."""
        while not done.done():
            await asyncio.wait({done}, timeout=0.2)
            if not done.done():
                self._alive()
        return done.result()

    def _die(self, why: str) -> None:
        if self._death is None:
            self._death = why
        for future in tuple(self._pending):
            if not future.done():
                future.set_exception(EngineDied(f"the torch engine cannot serve: {self._death}"))

    def _deliver(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            future = sequence.tag
            if isinstance(future, asyncio.Future) and not future.done():
                future.set_result(_completion(sequence))

    # --- the thread's side -------------------------------------------------------------------------------------------

    def _run(self, started: asyncio.Future[None]) -> None:
        loop = self._loop
        assert loop is not None
        try:
            self._load_model()
        except (OSError, ValueError, RuntimeError) as error:
            loop.call_soon_threadsafe(_fail, started, ValueError(f"model_path {self._model_path!r}: {error}"))
            return
        except Exception as error:  # whatever it was, the start must not wait for ever
            loop.call_soon_threadsafe(_fail, started, error)
            return
        self._answer(started, None)
        try:
            self._step_until_stopped(loop)
        except Exception as error:  # whatever it was, callers must not wait for ever
            why = f"{type(error).__name__}: {error}"
            loop.call_soon_threadsafe(self._die, why)

    def _load_model(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from headrace.actors.generator.decoder import Decoder
        from headrace.actors.generator.expectation import context_length
        from headrace.actors.generator.torch_weights import TorchWeights
        from headrace.transport.weights.layout import expected_of

        torch.set_num_threads(self._num_threads)  # of this thread's parallel regions
        self._context_tokens = context_length(self._model_path, self._max_model_len)
        self._model = AutoModelForCausalLM.from_pretrained(self._model_path, dtype=getattr(torch, self._dtype)).eval()
        self._expected = expected_of(self._model)
        self._weights = TorchWeights(self._model)
        self._decoder = Decoder(
            self._model,
            max_batch=self._max_batch,
            max_length=self._context_tokens,
            max_prefill_tokens=self._max_prefill_tokens,
        )

    def _step_until_stopped(self, loop: asyncio.AbstractEventLoop) -> None:
        decoder = self._owned_decoder()
        while True:
            with self._wake:
                while not (self._commands or decoder.busy or self._stopping):
                    self._wake.wait()
                if self._stopping:
                    return
                commands, self._commands = self._commands, deque()
            for command in commands:
                command()
            if decoder.busy:
                finished = decoder.step(self._version)
                if finished:
                    loop.call_soon_threadsafe(self._deliver, finished)

    def _owned_decoder(self) -> Decoder:
        assert self._decoder is not None
        return self._decoder

    def _commit(self, done: asyncio.Future[float], manifest: Manifest, staged: WeightReceiver) -> None:
        assert self._loop is not None
        try:
            load_s = self._load(manifest, staged)
        except AdapterRefused as error:
            said = f"version {manifest.version} failed to load, version {self._version} serves on: {error}"
            self._loop.call_soon_threadsafe(_fail, done, WeightsMismatch(said))
        else:
            self._answer(done, load_s)

    def _receive(self, done: asyncio.Future[float], manifest: Manifest, broadcast: Broadcast) -> None:
        """A failure before anything is loaded is the update's, a later one the engine's: the model is a mixture."""
        assert self._weights is not None
        assert self._loop is not None
        started = time.perf_counter()
        arriving = self._rank.receiver.arriving(broadcast.group, manifest, timeout_s=broadcast.timeout_s)
        try:
            first = next(arriving, None)
        except (GroupBroken, WeightsMismatch) as error:
            self._loop.call_soon_threadsafe(_fail, done, error)
            return
        self._weights.load_arriving(itertools.chain([] if first is None else [first], arriving))
        self._held, self._version = manifest, manifest.version
        load_s = time.perf_counter() - started
        if self._policy.recompute:
            self._owned_decoder().recompute()
        self._answer(done, load_s)

    def _load(self, manifest: Manifest, staged: WeightReceiver) -> float:
        """Into the model, between two decode steps. Seconds that it took,
        without those of keys and values that are computed anew.

        A mismatch that appears only now has left the model half old, half new: it ends the engine."""
        assert self._weights is not None
        started = time.perf_counter()
        self._weights.load(manifest, staged, self._staged.base)
        if manifest.adapter is None or self._staged.base is not None:
            self._held = manifest if manifest.adapter is None else manifest.adapter.base
        self._version = manifest.version
        load_s = time.perf_counter() - started
        if self._policy.recompute:
            self._owned_decoder().recompute()
        return load_s

    def _score(self, token_ids: np.ndarray) -> np.ndarray:
        """float32[P - 1]: the log-prob of each token after the first."""
        import torch

        assert self._model is not None
        if len(token_ids) < 2:
            return np.zeros(0, dtype=np.float32)
        tokens_1P = torch.from_numpy(token_ids.astype(np.int64))[None]
        with torch.inference_mode():
            logits_PV = self._model(input_ids=tokens_1P, use_cache=False).logits[0, :-1].float()
            chosen_P = logits_PV.log_softmax(-1).gather(1, tokens_1P[0, 1:, None])[:, 0]
        scored: np.ndarray = chosen_P.numpy()
        return scored

    def _answer(self, future: asyncio.Future[T], value: T) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_resolve, future, value)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _completion(sequence: Sequence) -> Completion:
    return Completion(
        token_ids=np.asarray(sequence.token_ids, dtype=np.int32),
        logprobs=np.asarray(sequence.logprobs, dtype=np.float32),
        versions=np.asarray(sequence.versions, dtype=np.int32),
        finish_reason=sequence.finish_reason or "aborted",
    )
