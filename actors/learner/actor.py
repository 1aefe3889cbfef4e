"""The learner actor: stages in order, weights out, checkpoints. Heavy work runs in a worker thread; the event loop
stays live.

on_start loads the model (or the newest checkpoint of this run). A background task then runs `pretrain` → `sft` →
version 1 → probe → `rl` → last version → probe → `TrainingFinished`. A learner that was restarted first has the
dispatcher go back to where it is (`LearnerResumed`). The handlers only wake what waits for the parameter server.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.actors.learner.adapter_sender import AdapterSender
from headrace.actors.learner.advantages import Advantage, ByCritic, Rloo
from headrace.actors.learner.aggregation import Aggregation, TokenMean
from headrace.actors.learner.checkpoint import CheckpointStore
from headrace.actors.learner.corrections import Correction
from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.dispatcher_link import DispatcherLink
from headrace.actors.learner.kl import K3, KlPenalty
from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.making_room import EnginesAsleep
from headrace.actors.learner.objectives import ClippedRatio, IsReinforce, Objective
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.penalties import RewardPenalty
from headrace.actors.learner.probe import LogprobProbe
from headrace.actors.learner.publisher import PARAMETER_SERVER, PendingProbe, Publisher
from headrace.actors.learner.ranks import ALONE, Ranks
from headrace.actors.learner.ranks.meeting import LEARNER_RANK, RankLost, meet_ranks
from headrace.actors.learner.recipe import Recipe
from headrace.actors.learner.schedule import AdamSettings, LearningRate, Schedule
from headrace.actors.learner.sequence import document_sequence
from headrace.actors.learner.stages.pretrain import Pretrain, text_encoder
from headrace.actors.learner.stages.settings import Progress, RlSettings
from headrace.actors.learner.stages.sft import Sft, conversation_encoder
from headrace.actors.learner.stages.supervised import Encode, Supervised, run_supervised
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.learner.trained_log import TrainedLog
from headrace.actors.learner.update_probe import UpdateProbe
from headrace.actors.learner.versions import VersionLog
from headrace.actors.learner.weight_group import WeightGroupRoot
from headrace.actors.messages import (
    Accepted,
    BatchTrained,
    LearnerResumed,
    LearnerStepped,
    Metrics,
    TrainingFinished,
    VersionEvaluated,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.actors.rendering import load_renderer
from headrace.transport import Context, PeerDown, PeerUp, TransportError, handles
from headrace.transport.weights import (
    ON_DEVICE,
    Probe,
    SenderSettings,
    WeightSender,
    check_min_mb_per_s,
    make_sender,
)
from headrace.transport.weights.carrier import SENDERS, check_bucket_bytes, check_num_buffers
from headrace.transport.weights.collective import COLLECTIVE
from headrace.transport.weights.collective.communicator import AUTO, BACKENDS
from headrace.transport.weights.manifest import FLOAT_DTYPES

if TYPE_CHECKING:
    from headrace.actors.learner.ranks.group import RankGroup
    from headrace.actors.learner.workbench import Workbench

logger = logging.getLogger(__name__)

MONITOR = "monitor"
SUPERVISOR = "supervisor"
ANSWER_TIMEOUT_S = 60.0


class Learner(WeightGroupRoot):
    """model_path: a folder that plain transformers loads. checkpoints_dir: of this run; a checkpoint found there is
    resumed. run_id: names what this run keeps in shared memory.

    mode: "sync" has every version served before the next batch. max_steps, max_wall_s: end the `rl` stage, whichever
    comes first. lr, lr_schedule, warmup_steps, min_lr_ratio: of the `rl` stage over max_steps; `pretrain` and `sft`,
    the stages before it, have their own.
    lr_ess_scaling: times the root of each update's effective sample size by token over N.
    objective, advantage, aggregation, corrections, penalties, kl: docs/algorithms.md; corrections and penalties by any
    names of their own. num_minibatches, num_epochs: a batch is gone through so many times, each time in so many
    updates; it stays one step.
    weights_every_steps, weights_every_s: steps, and seconds, between versions. weights_dtype: what travels ("bfloat16",
    …); None: as trained. weights_buffers: versions that may be staged at once. weights_bucket_bytes: of one checksum.
    weights_communicator: of a broadcast ("auto", "cupy", "memory"). weights_staging: False: one buffer, and each
    publication is waited for (small memory). publish_timeout_s: for a version that must be served, beside what it takes
    at weights_min_mb_per_s. sleep_engines: in mode=sync, those that can give their memory back during a step
    (making_room.py).
    checkpoint_every_steps: 0 saves before `rl`, at the end and when stopped only. checkpoint_keep_last: so many stay,
    and the best. checkpoint_async: written while training goes on, from a copy in memory (weights and optimizer once
    more); False: training waits. trained_path: where the sessions
    of each step are recorded (trained_log.py); None nowhere. dispatcher_patience_s: how long a dispatcher that is lost
    or silent is waited for. probe: what engines sample, at the start and the end; update_probe: with every version;
    None: no probe. lora: `rl` trains adapters and sends only them; None: every weight. critic: a value head credits
    each token, in place of `advantage`, which must then be None.
    """

    def __init__(
        self,
        *,
        model_path: str,
        checkpoints_dir: str,
        run_id: str,
        seed: int = 0,
        mode: Literal["async", "sync"] = "async",
        max_steps: int = 100,
        max_wall_s: float | None = None,
        pretrain: Pretrain | None = None,
        sft: Sft | None = None,
        objective: Objective | None = None,
        advantage: Advantage | None = None,
        aggregation: Aggregation | None = None,
        corrections: Mapping[str, Correction] | None = None,
        penalties: Mapping[str, RewardPenalty] | None = None,
        num_minibatches: int = 1,
        num_epochs: int = 1,
        kl: KlPenalty | None = None,
        lr: float = 1e-6,
        lr_ess_scaling: bool = False,
        lr_schedule: Schedule = "constant",
        warmup_steps: int = 0,
        min_lr_ratio: float = 0.0,
        betas: Sequence[float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip_grad_norm: float = 1.0,
        tokens_per_row: int = 0,
        tokens_per_micro_batch: int = 2048,
        logits_chunk_tokens: int = 512,
        autocast: Literal["none", "bfloat16"] = "none",
        device: str = "cpu",
        num_threads: int | None = None,
        weights_transport: str = "shm",
        weights_every_steps: int = 1,
        weights_every_s: float | None = None,
        weights_dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None,
        weights_buffers: int = 2,
        weights_staging: bool = True,
        weights_bucket_bytes: int = 64 << 20,
        weights_communicator: str = "auto",
        weights_min_mb_per_s: float = 50.0,
        sleep_engines: bool = False,
        publish_timeout_s: float = 120.0,
        checkpoint_every_steps: int = 0,
        checkpoint_keep_last: int = 2,
        checkpoint_async: bool = True,
        wait_s: float = 30.0,
        trained_path: str | None = None,
        dispatcher_patience_s: float = 300.0,
        probe: LogprobProbe | None = None,
        update_probe: UpdateProbe | None = None,
        lora: LoraSettings | None = None,
        critic: CriticSettings | None = None,
        num_ranks: int = 1,
        ranks_timeout_s: float = 600.0,
    ) -> None:
        for name, value, least in (
            ("weights_every_steps", weights_every_steps, 1),
            ("checkpoint_every_steps", checkpoint_every_steps, 0),
            ("logits_chunk_tokens", logits_chunk_tokens, 1),
            ("num_minibatches", num_minibatches, 1),
            ("num_epochs", num_epochs, 1),
            ("num_ranks", num_ranks, 1),
            ("num_threads", 1 if num_threads is None else num_threads, 1),
        ):
            if value < least:
                raise ValueError(f"learner.{name} must be >= {least}, got {value}")
        if num_ranks > 1 and (lora is not None or critic is not None):
            other = "lora" if lora is not None else "critic"
            raise ValueError(
                f"learner.num_ranks must be 1 with learner.{other}, got {num_ranks}: only whole policies are sharded; "
                "set learner.num_ranks=1, or leave it out"
            )
        check_bucket_bytes("learner.weights_bucket_bytes", weights_bucket_bytes)
        # the newest version keeps one for generators that join late: a single one would never become free
        check_num_buffers("learner.weights_buffers", weights_buffers, least=2)
        if weights_every_s is not None and not 0 < weights_every_s < float("inf"):
            raise ValueError(f"learner.weights_every_s must be > 0 seconds or null, got {weights_every_s}")
        for name, setting in (
            ("publish_timeout_s", publish_timeout_s),
            ("dispatcher_patience_s", dispatcher_patience_s),
            ("ranks_timeout_s", ranks_timeout_s),
        ):
            if not setting > 0:
                raise ValueError(f"learner.{name} must be > 0, got {setting}")
        check_min_mb_per_s("learner.weights_min_mb_per_s", weights_min_mb_per_s)
        if autocast not in ("none", "bfloat16"):
            raise ValueError(f"learner.autocast must be none or bfloat16, got {autocast!r}")
        if weights_dtype is not None and weights_dtype not in FLOAT_DTYPES:
            allowed = ", ".join(sorted(FLOAT_DTYPES))
            raise ValueError(f"learner.weights_dtype must be null or one of {allowed}, got {weights_dtype!r}")
        if weights_transport not in SENDERS:
            allowed = ", ".join(sorted(SENDERS))
            raise ValueError(f"learner.weights_transport must be one of {allowed}, got {weights_transport!r}")
        if weights_communicator not in (AUTO, *BACKENDS):
            allowed = ", ".join((AUTO, *BACKENDS))
            raise ValueError(f"learner.weights_communicator must be one of {allowed}, got {weights_communicator!r}")
        if lora is not None and weights_transport in (COLLECTIVE, *ON_DEVICE):
            raise ValueError(
                f"learner.weights_transport={weights_transport} sends whole models, got learner.lora too; adapters are "
                "small: use weights=shm"
            )
        if sleep_engines and mode != "sync":
            raise ValueError(
                f"learner.sleep_engines is for mode=sync, got mode={mode}: elsewhere engines serve while it trains; "
                "use mode=sync, or leave generator.engine.sleep_while_training=false"
            )
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(f"learner.device must be cpu, cuda or cuda:N, got {device!r}")
        self._rl = RlSettings(max_steps=max_steps, max_wall_s=max_wall_s, mode=mode, wait_s=wait_s)
        self._learning_rate = LearningRate(lr, lr_schedule, warmup_steps, max_steps, min_lr_ratio)
        self._adam = AdamSettings((betas[0], betas[1]), eps, weight_decay, clip_grad_norm)
        self._packing = PackingSettings(tokens_per_row, tokens_per_micro_batch)
        self._objective = objective or IsReinforce()
        self._corrections = dict(corrections or {})
        self._penalties = dict(penalties or {})
        weights = [name for name, correction in self._corrections.items() if correction.kind == "weight"]
        if weights and not self._objective.takes_weights:
            raise ValueError(
                f"learner.corrections must be masks with the objective {type(self._objective).__name__}, got the "
                f"weight {', '.join(weights)}; it weighs by its ratio to the behaviour policy itself; "
                "choose masks, or an objective built on rho alone"
            )
        if critic is not None and advantage is not None:
            raise ValueError(
                f"learner.advantage must be null with learner.critic, which credits each token itself, got "
                f"{type(advantage).__name__}; set learner.advantage=null, or choose learner/critic=none"
            )
        if critic is not None and kl is not None and kl.whiten:
            raise ValueError(
                "learner.kl.whiten must be false with learner.critic, which has its own settings for that; set "
                "learner.kl.whiten=false, or choose learner/critic=none"
            )
        if isinstance(kl, K3) and not isinstance(self._objective, ClippedRatio):
            raise ValueError(
                f"learner.kl=k3 belongs to GRPO's published form, got the objective {type(self._objective).__name__}; "
                "its gradient as a loss is not that of the KL: choose k2 (a loss) or k1 (in the reward), or "
                "learner/objective=grpo"
            )
        self._num_minibatches = num_minibatches
        self._num_epochs = num_epochs
        self._lr_ess_scaling = lr_ess_scaling
        self._advantage = advantage or (Rloo() if critic is None else ByCritic())
        self._critic = critic
        self._aggregation = aggregation or TokenMean()
        self._kl = kl
        self._pretrain = pretrain
        self._sft = sft
        self._probe = probe
        self._update_probe = update_probe
        self._lora = lora
        self._model_folder = Path(model_path)
        self._checkpoints_dir = Path(checkpoints_dir)
        self._store = CheckpointStore(
            self._checkpoints_dir, model_folder=self._model_folder, keep_last=checkpoint_keep_last
        )
        self._checkpoint_every_steps = checkpoint_every_steps
        self._checkpoint_async = checkpoint_async
        self._trained = TrainedLog(None if trained_path is None else Path(trained_path))
        self._dispatcher_patience_s = dispatcher_patience_s
        self._run_id = run_id
        self._seed = seed
        self._autocast = autocast
        self._logits_chunk_tokens = logits_chunk_tokens
        self._device = device
        self._num_threads = num_threads
        self._weights_transport = weights_transport
        self._weights_every_steps = weights_every_steps
        self._weights_every_s = weights_every_s
        self._weights_dtype = weights_dtype
        self._weights_buffers = weights_buffers if weights_staging else 1
        self._weights_staging = weights_staging
        self._weights_bucket_bytes = weights_bucket_bytes
        self._weights_communicator = weights_communicator
        self._sleep_engines = sleep_engines
        self._publish_timeout_s = publish_timeout_s
        self._weights_min_mb_per_s = weights_min_mb_per_s
        self._num_ranks = num_ranks
        self._ranks_timeout_s = ranks_timeout_s
        self._ranks: RankGroup | None = None
        self._sender: WeightSender | None = None
        self._bench: Workbench | None = None
        self._stages: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def on_start(self, context: Context) -> None:
        self._versions = VersionLog(self._checkpoints_dir / "versions.jsonl")
        self._dispatcher = DispatcherLink(context, patience_s=self._dispatcher_patience_s)
        self._threads = ComputeThreads(context, num_threads=self._num_threads)
        if self._num_ranks > 1:
            self._ranks = await meet_ranks(
                context, self._threads, size=self._num_ranks, device=self._device, timeout_s=self._ranks_timeout_s
            )
            context.watch(LEARNER_RANK)
        bench = await self._threads.run("load", self._make_bench, self._threads, self._ranks or ALONE)
        self._bench = bench
        settings = SenderSettings(
            run_id=self._run_id,
            node=context.node,
            num_buffers=self._weights_buffers,
            bucket_bytes=self._weights_bucket_bytes,
            folder=self._checkpoints_dir.parent / "weights",
            model_folder=self._model_folder,
            device=self._device,
            communicator=self._weights_communicator,
        )
        if self._lora is None:
            self._sender = make_sender(self._weights_transport, settings)
        else:
            self._sender = AdapterSender(self._weights_transport, settings, bench)
        self._publisher = Publisher(
            context,
            self._sender,
            self._versions,
            tensors=bench.tensors,
            run=bench.run,
            every_steps=self._weights_every_steps,
            every_s=self._weights_every_s,
            staging=self._weights_staging,
            dtype=self._weights_dtype,
            probe=self._probe_of(bench),
            timeout_s=self._publish_timeout_s,
            min_mb_per_s=self._weights_min_mb_per_s,
        )
        context.watch(PARAMETER_SERVER)
        self._stages = context.spawn(self._run(bench), "stages")

    async def on_stop(self) -> None:
        """Save what would be lost, then take the staged weights away. A step under way is given up, not waited for,
        unless its optimizer is at work."""
        if self._stages is not None:
            self._stages.cancel()
        if self._bench is not None:
            self._bench.policy.interrupt()
            await self._bench.save_new_steps(self._publisher.version, self._publisher.version_step)
            if self._ranks is not None:
                await self._bench.run("end", self._ranks.end)
        if self._sender is not None:
            self._sender.close()

    def _probe_of(self, bench: Workbench) -> Callable[[int], PendingProbe | None]:
        """See Publisher: begun where the weights are staged, computed beside training."""
        from headrace.actors.learner.policy import Interrupted

        probe = self._update_probe
        if probe is None:
            return lambda version: None
        text = probe.text(min(len(bench.tokenizer), bench.policy.vocab_size), bench.tokenizer.all_special_ids)

        def begin(version: int) -> PendingProbe | None:
            autocasts = probe.autocasts(version, self._autocast, self._weights_dtype)
            if not autocasts:
                return None
            observed = bench.observe([document_sequence(text)], autocasts)

            async def compute() -> Probe | None:
                try:
                    logprobs = {autocast: found for autocast, (found,) in (await observed()).items()}
                except Interrupted:  # the learner stops; the version may still be the one that serves
                    return None
                return probe.of(text, logprobs, self._autocast, self._weights_dtype)

            return compute

        return begin

    def recipe(self) -> Recipe:
        """How this learner makes a step of a batch, for whoever does so without its messages (replay.py)."""
        return Recipe(
            self._make_bench,
            self._num_threads,
            self._advantage,
            self._penalties,
            self._learning_rate,
            self._kl,
            self._device,
        )

    def _make_bench(self, threads: ComputeThreads, ranks: Ranks = ALONE) -> Workbench:
        from headrace.actors.learner.workbench import Workbench  # torch and transformers: not in the launcher's process

        return Workbench(
            threads,
            self._store,
            self._model_folder,
            objective=self._objective,
            aggregation=self._aggregation,
            corrections=self._corrections,
            num_minibatches=self._num_minibatches,
            num_epochs=self._num_epochs,
            lr_ess_scaling=self._lr_ess_scaling,
            packing=self._packing,
            adam=self._adam,
            autocast=self._autocast,
            logits_chunk_tokens=self._logits_chunk_tokens,
            device=self._device,
            seed=self._seed,
            lora=self._lora,
            pretrains=self._pretrain is not None or self._sft is not None,
            critic=self._critic,
            advantage=self._advantage,
            ranks=ranks,
        )

    # --- the run ----------------------------------------------------------------------------------------------------

    async def _run(self, bench: Workbench) -> None:
        """From here to TrainingFinished. An exception ends the actor, with its traceback."""
        from headrace.actors.learner.stages.rl import RlStage

        if bench.resumed_from is not None:
            logger.info("resumed from %s at step %d", bench.resumed_from.name, bench.progress.step)
        else:
            await self._run_supervised(bench)
        await bench.adapt()
        if self._versions.newest > 0:
            await self._go_back(bench.progress)
        await self._publish_and_serve(bench)
        await self._save(bench)
        if self._kl is not None:
            await bench.penalise(self._kl)
        await self._run_probe(bench)
        stage = RlStage(
            self._rl,
            bench.progress,
            clock=self.context.clock,
            dispatcher=self._dispatcher,
            trained=self._trained,
            trainer=bench.trainer,
            advantage=self._advantage,
            penalties=self._penalties,
            learning_rate=self._learning_rate,
            publisher=self._publisher,
            versions=self._versions,
            run=bench.run,
            report=lambda step, figures: self._report_step("train", step, figures),
            after_step=self._after_step,
            room=EnginesAsleep(self.context) if self._sleep_engines else None,
        )
        await stage.run()
        await self._publish_and_serve(bench)
        await self._save(bench)
        await self._run_probe(bench)
        finished = TrainingFinished(step=bench.progress.step, version=self._publisher.version)
        await self._dispatcher.ask(finished, timeout_s=ANSWER_TIMEOUT_S)

    async def _go_back(self, progress: Progress) -> None:
        """An earlier life of this learner published weights, and may have trained beyond `step`: nothing of that is
        left, and nobody must count it. The step itself is left: one that was stopped may have saved it unreported."""
        step = progress.step
        self._trained.cut_back(step)
        last = self._trained.of_step(step)
        if last:
            await self._dispatcher.ask(BatchTrained(step, last), timeout_s=ANSWER_TIMEOUT_S)
        resumed = LearnerResumed(step, self._versions.newest, goes_on=self._rl.goes_on(progress))
        self._versions.resume(step)
        await self._dispatcher.ask(resumed, timeout_s=ANSWER_TIMEOUT_S)

    async def _run_supervised(self, bench: Workbench) -> None:
        """`pretrain`, then `sft`, those of them that are set."""
        if self._pretrain is not None and not bench.is_past(self._pretrain.name):
            encode = text_encoder(bench.tokenizer, self._pretrain.max_tokens)
            await self._run_stage(self._pretrain, bench, encode)
        if self._sft is not None:
            renderer = await bench.run("read", load_renderer, self._sft.renderer, str(self._model_folder))
            encode = conversation_encoder(renderer, self._sft, vocab_size=bench.policy.vocab_size)
            await self._run_stage(self._sft, bench, encode)

    async def _run_stage(self, stage: Supervised, bench: Workbench, encode: Encode) -> None:
        trainer = await bench.run(stage.name, bench.make_supervised, stage.name, stage.adam)
        start = bench.place(stage.name)
        if start is not None:
            logger.info("%s goes on behind its step %d", stage.name, start.step)
        held_out_loss = await run_supervised(
            stage,
            trainer,
            encode,
            seed=self._seed,
            start=start,
            save=lambda place: bench.save_stage(stage.name, place),
            run=bench.run,
            report=lambda step, figures: self._report_step(stage.name, step, figures),
        )
        logger.info("%s done after %d steps, held-out loss %.4f", stage.name, stage.steps, held_out_loss)

    async def _publish_and_serve(self, bench: Workbench) -> None:
        """Have generators serve the weights as they are now, waiting for a buffer where none is free."""
        if self._publisher.version_step != bench.progress.step:
            await self._publisher.publish(bench.progress.step)
        await self._publisher.wait_served(self._publisher.version)

    async def _run_probe(self, bench: Workbench) -> None:
        if self._probe is None:
            return
        prompts = await self.context.run_blocking(
            self._probe.prompt_ids, bench.tokenizer, bench.policy.vocab_size, label="probe"
        )
        try:
            gap = await self._probe.run(self.context, prompts, self._publisher.version, bench.logprobs)
        except TransportError as error:  # a lost generator must not end a run over a measurement
            logger.warning("log-prob probe at version %d: %s", self._publisher.version, error)
            return
        figures = {"tokens": float(gap.num_tokens)}
        if gap.num_tokens:
            figures |= {"mean": gap.mean_abs, "max": gap.max_abs, "kl": gap.kl}
        self._report("logprob_probe", "version", self._publisher.version, figures)
        logger.info("log-prob probe at version %d: %s", self._publisher.version, figures)

    async def _after_step(self) -> None:
        bench = self._bench
        every = self._checkpoint_every_steps
        if bench is None or not every or bench.progress.step % every:
            return
        save = bench.save_beside if self._checkpoint_async else bench.save
        await save(self._publisher.version, self._publisher.version_step)
        self._report("checkpoint", "step", bench.progress.step, bench.checkpoint_figures)

    async def _save(self, bench: Workbench) -> None:
        await bench.save(self._publisher.version, self._publisher.version_step)

    def _report_step(self, stage: str, step: int, figures: dict[str, Any]) -> None:
        self._report(stage, "step", step, figures)
        self.context.tell_soon(SUPERVISOR, LearnerStepped(stage, step))

    def _report(self, stream: str, step_name: str, step: float, figures: dict[str, Any]) -> None:
        values = {name: float(value) for name, value in figures.items()}
        self.context.tell_soon(MONITOR, Metrics(stream, step_name, step, values))

    # --- the parameter server ---------------------------------------------------------------------------------------

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        self._publisher.served(message.version)
        return Accepted()

    @handles(VersionEvaluated)
    async def version_evaluated(self, message: VersionEvaluated) -> None:
        if self._bench is not None:
            await self._bench.evaluated(message.step, message.score)

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> Accepted:
        self._publisher.released(message.version)
        return Accepted()

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> Accepted:
        bench = self._bench
        if bench is not None:
            self._publisher.refused(message.version, message.reason, step=lambda: bench.progress.step)
        return Accepted()

    @handles(PeerUp)
    async def peer_up(self, message: PeerUp) -> None:
        self._publisher.server_up(message.incarnation)

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        if message.name.startswith(f"{LEARNER_RANK}/"):
            raise RankLost(f"{message.name} is gone ({message.reason}); the learner starts again from its checkpoint")
        logger.warning("%s is gone (%s); training goes on with the version in service", message.name, message.reason)
