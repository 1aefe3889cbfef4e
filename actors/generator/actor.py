"""The generator: serves `Generate` from one engine and takes new weights while requests are in flight.

It takes requests only once it has been told which version to begin with: the parameter server sends every generator
that comes up either the newest version or `CommitWeights(0)`, "serve what you have". Requests that arrive before that
wait in their handlers (bounded by the mailbox and by the askers' deadlines): no session begins on stale weights.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from headrace.actors.generator.engine import CommitTimings, Engine, EngineDied, StageTimings
from headrace.actors.generator.engine_sleep import EngineSleep
from headrace.actors.generator.group_member import GroupMember
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.generator.near_weights import NearWeights
from headrace.actors.messages import (
    CommitWeights,
    Completion,
    EngineAsleep,
    Generate,
    Metrics,
    SleepEngine,
    StageWeights,
    WeightsCommitted,
    WeightsStaged,
)
from headrace.actors.session import Sampling
from headrace.transport import Context, MailboxBound, handles
from headrace.transport.weights import Manifest, Probe, WeightsMismatch
from headrace.transport.weights.collective import IN_PLACE, VLLM

logger = logging.getLogger(__name__)

T = TypeVar("T")
PARAMETER_SERVER = "parameter_server"
PROBE_TIMEOUT_S = 120.0


class Generator(GroupMember):
    """engine: a plug-in (see Engine); its constructor is cheap, `start` loads the model.
    wait_for_weights: hold requests until the parameter server has said which version to serve; False where there is
    no parameter server. max_requests: requests that this actor holds at once, running and waiting.
    metrics_period_s: how often token counters go to the monitor; 0 for never."""

    def __init__(
        self,
        *,
        engine: Engine,
        wait_for_weights: bool = True,
        max_requests: int = 1024,
        metrics_period_s: float = 2.0,
    ) -> None:
        if max_requests < 1:
            raise ValueError(f"generator.max_requests must be >= 1, got {max_requests}")
        if metrics_period_s < 0:
            raise ValueError(f"generator.metrics_period_s must be >= 0, got {metrics_period_s}; 0 is never")
        self._engine = engine
        self._wait_for_weights = wait_for_weights
        self._metrics_period_s = metrics_period_s
        self.mailbox = MailboxBound(capacity=max_requests)
        self._failed = False
        self._staged: Manifest | None = None
        self._stage_timings = StageTimings()
        self._num_completions = 0
        self._num_tokens = 0
        self._num_alarms = 0

    async def on_start(self, context: Context) -> None:
        self._ready = asyncio.Event()
        self._one_update = asyncio.Lock()
        self._updates: set[asyncio.Task[Any]] = set()
        self._near = NearWeights(context)
        self._sleep = EngineSleep(self._engine)
        await self._engine.start()
        if not self._wait_for_weights:
            self._ready.set()
        if self._metrics_period_s:
            context.spawn(self._report_tokens(context), "token counters")

    async def on_stop(self) -> None:
        self._failed = True  # from here on a dead engine is no news
        await self._engine.close()
        for task in list(self._updates):
            task.cancel()

    def metadata(self) -> dict[str, object]:
        return {"engine": type(self._engine).__name__}

    @handles(Generate, concurrent=True)
    async def generate(self, message: Generate) -> Completion:
        """Raises (RemoteError at the asker) ValueError for a request that cannot be served. An engine that died fails
        the whole actor: its supervisor starts a new one."""
        if not self._ready.is_set():
            with self.context.activity.waiting(PARAMETER_SERVER, "the version to begin with"):
                await self._ready.wait()
        try:
            with self.context.activity.working("decode"):  # the engine computes in threads or processes of its own
                async with self._sleep.awake():
                    completion = await self._engine.generate(message)
        except EngineDied as error:
            self.engine_died(error)
            raise
        self._num_completions += 1
        self._num_tokens += len(completion.token_ids)
        return completion

    @handles(StageWeights, concurrent=True)
    async def stage(self, message: StageWeights) -> WeightsStaged:
        """Raises WeightsMismatch: the version in service stays. What is served already is not staged again."""
        broadcast = Broadcast(message.group, message.timeout_s) if message.group else None
        return await self._update(self._stage(message.manifest, broadcast))

    @handles(CommitWeights, concurrent=True)
    async def commit(self, message: CommitWeights) -> WeightsCommitted:
        """Raises WeightsMismatch where that version is not the staged one. Never goes back to an older version."""
        return await self._update(self._commit(message.version))

    @handles(SleepEngine, concurrent=True)
    async def sleep(self, message: SleepEngine) -> EngineAsleep:
        """Not while an update is under way, nor beside requests."""
        return EngineAsleep(await self._update(self._sleep.sleep()))

    async def _update(self, work: Coroutine[Any, Any, T]) -> T:
        """One at a time, to its end even where the asker's deadline passes: half an update must not be left behind."""
        task = asyncio.ensure_future(self._alone(work))
        self._updates.add(task)
        task.add_done_callback(self._update_done)
        return await asyncio.shield(task)

    async def until_idle(self) -> None:
        async with self._one_update:
            pass

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._one_update:
            return await work

    def _update_done(self, task: asyncio.Task[Any]) -> None:
        self._updates.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, EngineDied):
            self.engine_died(error)
        elif error is not None:
            logger.warning("%s keeps version %d: %s", self.context.name, self._engine.version, error)

    async def _stage(self, manifest: Manifest, broadcast: Broadcast | None) -> WeightsStaged:
        if manifest.version <= self._engine.version:
            return WeightsStaged(manifest.version)
        self._staged = None
        if broadcast is not None and (manifest.location == IN_PLACE or self.collective_engine.ranks.kind == VLLM):
            async with self._sleep.awake():
                self._served(manifest, await self.collective_engine.load_arriving(manifest, broadcast))
            return WeightsStaged(manifest.version)
        if broadcast is not None:
            self._stage_timings = timings = await self.collective_engine.receive_weights(manifest, broadcast)
            self._staged = manifest
            return WeightsStaged(manifest.version, timings.send_s, timings.verify_s)
        manifest = await self._near.bring(manifest)
        timings = await self._engine.stage_weights(manifest)
        self._stage_timings = timings = replace(timings, send_s=timings.send_s + self._near.brought_s)
        self._staged = manifest
        return WeightsStaged(manifest.version, timings.send_s, timings.verify_s)

    async def _commit(self, version: int) -> WeightsCommitted:
        if version <= self._engine.version:
            self._ready.set()
            return WeightsCommitted(self._engine.version, 0.0, 0.0, self._engine.num_running)
        manifest, self._staged = self._staged, None
        if manifest is None or manifest.version != version:
            staged = "nothing" if manifest is None else f"version {manifest.version}"
            raise WeightsMismatch(f"commit of version {version}, but {staged} is staged; ask StageWeights first")
        try:
            async with self._sleep.awake():
                timings = await self._engine.commit_weights(manifest)
        finally:
            self._near.loaded()
        self._served(manifest, timings)
        return WeightsCommitted(version, timings.pause_s, timings.load_s, timings.requests_running)

    def _served(self, manifest: Manifest, timings: CommitTimings) -> None:
        self._ready.set()
        self._report_update(manifest, timings)
        if manifest.probe is not None:
            self.context.spawn(self._compare(manifest.version, manifest.probe), f"probe of version {manifest.version}")

    def _report_update(self, manifest: Manifest, timings: CommitTimings) -> None:
        values = {
            "pause_s": timings.pause_s,
            "load_s": timings.load_s,
            "send_s": self._stage_timings.send_s,
            "verify_s": self._stage_timings.verify_s,
            "requests_running": float(timings.requests_running),
            "nbytes": float(manifest.nbytes),
        }
        self.context.tell_soon("monitor", Metrics(self._stream("weights"), "version", manifest.version, values))

    async def _compare(self, version: int, probe: Probe) -> None:
        """Whether this engine makes of the learner's text what the learner makes of it, beside the requests in flight.
        Only what no later update came into counts."""
        sampling = Sampling(temperature=1.0, max_tokens=1, seed=0)
        text = np.asarray(probe.token_ids, dtype=np.int32)
        request = Generate(f"update-probe-{version}", text, sampling, fresh=True, prompt_logprobs=True)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                async with self._sleep.awake():
                    completion = await self._engine.generate(request)
        except EngineDied as error:
            return self.engine_died(error)
        except (TimeoutError, ValueError) as error:
            logger.warning("version %d was not probed: %s: %s", version, type(error).__name__, error)
            return
        if version != self._engine.version or version != completion.versions[0]:
            return
        gaps = np.abs(completion.prompt_logprobs - np.asarray(probe.logprobs, dtype=np.float32))
        mean = float(gaps.mean())
        alarm = not mean <= probe.bound  # NaN too
        self._num_alarms += alarm
        if alarm:
            logger.warning(
                "log-probs of version %d differ from the learner's by %.3g on the mean of %d tokens (bound %g, largest "
                "%.3g): the weights arrived whole, but this engine computes something else with them",
                version, mean, len(gaps), probe.bound, float(gaps.max()),
            )  # fmt: skip
        values = {"mean": mean, "max": float(gaps.max()), "bound": probe.bound, "alarms_total": float(self._num_alarms)}
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.context.tell_soon("monitor", Metrics(self._stream("update_probe"), "version", version, finite))

    async def _report_tokens(self, context: Context) -> None:
        began_s = context.clock.time()
        reported_tokens, reported_s = 0, began_s
        while True:
            await context.clock.sleep(self._metrics_period_s)
            now_s = context.clock.time()
            values = {
                "tokens_total": float(self._num_tokens),
                "completions_total": float(self._num_completions),
                "tokens_per_s": (self._num_tokens - reported_tokens) / max(now_s - reported_s, 1e-9),
                "requests_running": float(self._engine.num_running),
            }
            reported_tokens, reported_s = self._num_tokens, now_s
            context.tell_soon("monitor", Metrics(self._stream("generate"), "wall_s", now_s - began_s, values))

    def _stream(self, name: str) -> str:
        """Evaluators report apart: their updates and tokens are not those of the rollouts."""
        return f"{name}/evaluator" if self.context.role == "evaluator" else name

    def engine_died(self, error: EngineDied) -> None:
        """End this actor, and so its process, with that error; once."""
        if self._failed:
            return
        self._failed = True

        async def fail() -> None:
            raise error

        self.context.spawn(fail(), "engine died")
