"""The whole learner in one process on virtual time, against small peers that keep their side of the contract.

The task is a bandit: one prompt, one sampled token, reward 1 where its id is even. The peers sample from the weights
that the learner published, read back out of shared memory.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.learner.actor import Learner
from headrace.actors.learner.advantages import RunningMean
from headrace.actors.learner.checkpoint import CheckpointStore, list_checkpoints, read_info
from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.documents import GeneratedDocuments, JsonLines
from headrace.actors.learner.export import export_checkpoint
from headrace.actors.learner.kl import K2
from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.objectives import ClippedRatio
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.probe import LogprobProbe
from headrace.actors.learner.stages.pretrain import Pretrain
from headrace.actors.learner.stages.sft import Sft
from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import (
    Accepted,
    Batch,
    BatchTrained,
    Completion,
    Generate,
    LearnerResumed,
    Metrics,
    NextBatch,
    PublishWeights,
    TrainingFinished,
    VersionEvaluated,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.actors.session import Group, Sampling, SessionSpec, Task, Trajectory
from headrace.transport import Actor, ActorFailed, Context, Runtime, handles, run_virtual
from headrace.transport.weights import Manifest, open_weights

PROMPT = np.array([20, 21, 22], dtype=np.int32)
GROUPS, MEMBERS = 4, 8


class World:
    """What the peers share: the weights in service, and what they were told."""

    def __init__(self, model_folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
        self.version, self.step = 0, 0
        self.run_id = f"test-{secrets.token_hex(6)}"
        self.stop_after_steps: int | None = None
        self.published: list[tuple[int, int]] = []
        self.manifests: list[Manifest] = []
        self.asked: list[int] = []
        self.trained: list[BatchTrained] = []
        self.rewards: list[float] = []
        self.finished: list[TrainingFinished] = []
        self.resumed: list[LearnerResumed] = []
        self.metrics: dict[str, list[Metrics]] = defaultdict(list)
        self.random = torch.Generator().manual_seed(0)
        self.numbers = itertools.count()

    @torch.no_grad()
    def sample(self, prompt: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
        """`num` single tokens and their log-probs."""
        logits = self.model(input_ids=torch.from_numpy(prompt.astype(np.int64))[None]).logits[0, -1]
        logprobs = logits.log_softmax(-1)
        ids = torch.multinomial(logprobs.exp(), num, replacement=True, generator=self.random)
        return ids.numpy().astype(np.int32), logprobs[ids].numpy()

    def series(self, stream: str, name: str) -> list[float]:
        return [m.values[name] for m in self.metrics[stream] if name in m.values]


class FakeDispatcher(Actor):
    def __init__(self, world: World) -> None:
        self.world = world
        self.done = asyncio.Event()

    @handles(NextBatch)
    async def next_batch(self, message: NextBatch) -> Batch:
        self.world.asked.append(message.step)
        groups = tuple(self.group(f"g{next(self.world.numbers)}") for _ in range(GROUPS))
        return Batch(groups, {self.world.version: self.world.step})

    def group(self, group_id: str) -> Group:
        ids, logprobs = self.world.sample(PROMPT, MEMBERS)
        members = tuple(self.trajectory(group_id, i, ids[i], logprobs[i]) for i in range(MEMBERS))
        self.world.rewards += [m.reward for m in members if m.reward is not None]
        return Group(group_id, members)

    def trajectory(self, group_id: str, member: int, token: int, logprob: float) -> Trajectory:
        mask = np.array([False, False, False, True])
        task = Task(task_id="even", source="bandit", prompt=())
        return Trajectory(
            spec=SessionSpec(f"{group_id}-{member}", group_id, member, "train", task, Sampling()),
            token_ids=np.append(PROMPT, token).astype(np.int32),
            logprobs=np.where(mask, logprob, 0.0).astype(np.float32),
            loss_mask=mask,
            versions=np.where(mask, self.world.version, -1).astype(np.int32),
            turns=(),
            messages=(),
            ending="done",
            reward=self.reward(token),
        )

    def reward(self, token: int) -> float | None:
        return float(token % 2 == 0)

    @handles(BatchTrained)
    async def batch_trained(self, message: BatchTrained) -> Accepted:
        self.world.trained.append(message)
        if message.step == self.world.stop_after_steps:
            self.done.set()
        return Accepted()

    @handles(LearnerResumed)
    async def learner_resumed(self, message: LearnerResumed) -> Accepted:
        assert not self.world.asked, "said before the first NextBatch"
        self.world.resumed.append(message)
        return Accepted()

    @handles(TrainingFinished)
    async def training_finished(self, message: TrainingFinished) -> Accepted:
        self.world.finished.append(message)
        self.done.set()
        return Accepted()


class NoRewards(FakeDispatcher):
    def reward(self, token: int) -> float | None:
        return None


class NothingSampled(FakeDispatcher):
    """Rewards that differ, and loss masks that are all zero."""

    def trajectory(self, group_id: str, member: int, token: int, logprob: float) -> Trajectory:
        whole = super().trajectory(group_id, member, token, logprob)
        none = np.zeros_like(whole.loss_mask)
        return replace(
            whole,
            loss_mask=none,
            logprobs=np.zeros_like(whole.logprobs),
            versions=np.full_like(whole.versions, -1),
            reward=float(member % 2),
        )


class NoBatches(FakeDispatcher):
    @handles(NextBatch, concurrent=True)
    async def next_batch(self, message: NextBatch) -> Batch:
        self.world.asked.append(message.step)
        await self.context.clock.sleep(message.wait_s)
        return Batch(())


class FakeParameterServer(Actor):
    """Serves what it is given after `serve_s`, then releases the version before it; the newest keeps its buffer."""

    def __init__(self, world: World, *, serve_s: float = 0.0) -> None:
        self.world = world
        self.serve_s = serve_s

    @handles(PublishWeights)
    async def publish(self, message: PublishWeights) -> Accepted:
        self.context.spawn(self.serve(message), "serve")
        return Accepted()

    async def serve(self, message: PublishWeights) -> None:
        world, manifest = self.world, message.manifest
        await self.context.clock.sleep(self.serve_s)
        weights = open_weights(manifest)
        weights.verify()
        state = {name: tensor.clone().float() for name, tensor in weights.tensors(include_tied=True)}
        world.model.load_state_dict(state)
        weights.close()
        older, world.version, world.step = world.version, manifest.version, manifest.step
        world.published.append((manifest.version, manifest.step))
        await self.context.tell("learner", VersionServed(manifest.version, manifest.step))
        await self.context.tell("learner", WeightsReleased(older))


class AdaptedParameterServer(FakeParameterServer):
    """Serves W + (alpha / rank) · B @ A of what it is sent, upon the base sent with it or the model folder's."""

    def __init__(self, world: World, *, serve_s: float = 0.0) -> None:
        super().__init__(world, serve_s=serve_s)
        self.folders_weights = {name: tensor.clone() for name, tensor in world.model.state_dict().items()}

    async def serve(self, message: PublishWeights) -> None:
        world, manifest = self.world, message.manifest
        assert manifest.adapter is not None
        weights = dict(self.folders_weights)
        if manifest.adapter.base is not None:
            weights |= read(manifest.adapter.base)
        factors = read(manifest)
        for module in manifest.adapter.modules:
            a, b = (factors[f"base_model.model.{module}.lora_{x}.weight"] for x in "AB")
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + manifest.adapter.alpha / a.shape[0] * b @ a
        world.model.load_state_dict(weights)
        older, world.version, world.step = world.version, manifest.version, manifest.step
        world.published.append((manifest.version, manifest.step))
        world.manifests.append(manifest)
        await self.context.tell("learner", VersionServed(manifest.version, manifest.step))
        await self.context.tell("learner", WeightsReleased(older))


def read(manifest: Manifest) -> dict[str, torch.Tensor]:
    weights = open_weights(manifest)
    weights.verify()
    tensors = {name: tensor.clone() for name, tensor in weights.tensors(include_tied=True)}
    weights.close()
    return tensors


class DeafParameterServer(FakeParameterServer):
    async def serve(self, message: PublishWeights) -> None:
        return


class FakeGenerator(Actor):
    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Generate)
    async def generate(self, message: Generate) -> Completion:
        assert message.fresh
        ids, logprobs = self.world.sample(message.prompt_token_ids, 1)
        return Completion(ids, logprobs, np.array([self.world.version], dtype=np.int32), "length")


class FakeMonitor(Actor):
    def __init__(self, world: World) -> None:
        self.world = world

    @handles(Metrics)
    async def metrics(self, message: Metrics) -> None:
        self.world.metrics[message.stream].append(message)


@pytest.fixture
def play(model_folder: Path, tmp_path: Path) -> Any:
    """Run a learner among the peers until TrainingFinished (or a failure, which is raised)."""

    def go(
        *,
        dispatcher: type[FakeDispatcher] = FakeDispatcher,
        server: type[FakeParameterServer] = FakeParameterServer,
        serve_s: float = 0.0,
        checkpoints: str = "checkpoints",
        stop_after_steps: int | None = None,
        run: Callable[[Coroutine[Any, Any, None]], None] = run_virtual,
        **settings: Any,
    ) -> World:
        world = World(model_folder)
        world.stop_after_steps = stop_after_steps
        settings = {"lr": 2e-2, "max_steps": 12, "num_threads": 1, **settings}

        async def main() -> None:
            runtime = Runtime()
            await runtime.start()
            peer = dispatcher(world)
            await runtime.add(peer, "dispatcher/0")
            await runtime.add(server(world, serve_s=serve_s), "parameter_server/0")
            await runtime.add(FakeGenerator(world), "generator/0")
            await runtime.add(FakeMonitor(world), "monitor/0")
            learner = Learner(
                model_path=str(model_folder),
                checkpoints_dir=str(tmp_path / checkpoints),
                run_id=world.run_id,
                **settings,
            )
            await runtime.add(learner, "learner/0")
            finished = asyncio.ensure_future(peer.done.wait())
            try:
                await asyncio.wait([finished, runtime.failed], return_when=asyncio.FIRST_COMPLETED)
                if runtime.failed.done():
                    runtime.failed.result()
                if stop_after_steps is None:
                    await asyncio.sleep(0.1)  # the last metrics arrive
            finally:
                finished.cancel()
                await runtime.stop()

        run(main())
        return world

    return go


def test_the_reward_rises_and_everything_is_reported(play, tmp_path):
    world = play(probe=LogprobProbe())
    per_step = np.array(world.rewards).reshape(12, -1).mean(axis=1)
    assert per_step[0] < 0.75
    assert per_step[-1] > 0.9
    last_version, last_step = world.published[-1]
    assert [v for v, _ in world.published] == list(range(1, last_version + 1))
    assert (world.published[0], last_step) == ((1, 0), 12)
    assert world.finished == [TrainingFinished(step=12, version=last_version)]
    assert [t.step for t in world.trained] == list(range(1, 13))
    assert all(len(t.session_ids) == GROUPS * MEMBERS for t in world.trained)
    assert [m.step for m in world.metrics["train"]] == list(range(1, 13))
    last = world.metrics["train"][-1].values
    for name in (
        "loss",
        "grad_norm",
        "lr",
        "reward/mean",
        "ess/token",
        "ess/sequence",
        "lag/token_p95",
        "seconds/wait",
    ):
        assert np.isfinite(last[name]), name
    # Two probes, at the first and the last version: engine and learner agree in float32.
    assert [m.step for m in world.metrics["logprob_probe"]] == [1, last_version]
    assert max(world.series("logprob_probe", "mean")) < 1e-4
    assert min(world.series("logprob_probe", "tokens")) == 8
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert read_info(newest).version == last_version


def test_tokens_of_the_trained_weights_show_the_engines_mismatch_alone(play):
    world = play(mode="sync", max_steps=3)
    assert world.series("train", "lag/token_max") == [0.0] * 3
    assert world.series("train", "logprob_gap/same_version_tokens") == [GROUPS * MEMBERS] * 3
    assert max(world.series("train", "logprob_gap/same_version_mean")) < 1e-5
    assert world.series("train", "logprob_gap/older_tokens") == [0.0] * 3


def test_the_probe_asks_with_the_prompts_that_it_was_given(play):
    """More of them than the default, each answered with tokens of the probed version."""
    world = play(max_steps=1, probe=LogprobProbe(prompts=lambda: [[3, 4, 5]] * 11))
    assert min(world.series("logprob_probe", "tokens")) == 11


def test_sync_serves_every_version_before_the_next_batch(play):
    """A slow server makes an asynchronous learner train on older weights, and a synchronous one wait."""
    assert max(play(serve_s=5.0, max_steps=4).series("train", "lag/token_max")) > 0
    assert max(play(serve_s=5.0, max_steps=4, mode="sync", checkpoints="other").series("train", "lag/token_max")) == 0


def test_without_a_free_buffer_publications_are_skipped_but_not_the_last(play):
    """While a slow server holds both buffers training goes on; the final version still waits for its turn."""
    world = play(serve_s=5.0, max_steps=6)
    assert world.series("train", "publications/skipped")[-1] > 0
    assert world.finished[0].step == 6
    assert world.published[-1] == (world.finished[0].version, 6)
    assert [v for v, _ in world.published] == list(range(1, len(world.published) + 1))


def test_lr_0_trains_nothing(play, model_folder, tmp_path):
    """The control run: the same loop, and weights that are equal bit for bit at its end."""
    from safetensors.torch import load_file

    world = play(lr=0.0, max_steps=3)
    assert world.series("train", "applied") == [0.0] * 3
    before = load_file(model_folder / "model.safetensors")
    after = load_file(list_checkpoints(tmp_path / "checkpoints")[-1] / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[n].view(torch.int32), after[n].view(torch.int32)) for n in before)


@pytest.mark.parametrize(
    ("dispatcher", "reason"), [(NoRewards, "reward_missing"), (NothingSampled, "no_sampled_tokens")]
)
def test_a_batch_with_nothing_to_train_is_acknowledged_and_trains_nothing(
    play, model_folder, tmp_path, dispatcher, reason
):
    """cases B44: no rewards, or masks that are all zero: no optimizer step, no NaN; `step` counts the batch,
    `skipped_batches` says so, and the refusals say why."""
    from safetensors.torch import load_file

    world = play(dispatcher=dispatcher, max_steps=3)
    assert world.series("train", f"intake/refused_{reason}") == [GROUPS * MEMBERS] * 3
    assert [len(t.session_ids) for t in world.trained] == [GROUPS * MEMBERS] * 3
    assert world.series("train", "skipped_batches") == [1.0, 2.0, 3.0]
    assert all(np.isfinite(v) for m in world.metrics["train"] for v in m.values.values())
    before = load_file(model_folder / "model.safetensors")
    after = load_file(list_checkpoints(tmp_path / "checkpoints")[-1] / "model.safetensors")
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_pretraining_comes_first_and_version_1_holds_step_0(play):
    source = GeneratedDocuments(make=lambda rng: "".join(rng.choice("ab") for _ in range(rng.randint(3, 8))))
    world = play(
        pretrain=Pretrain(source=source, steps=30, documents_per_step=16, held_out_every_steps=15), max_steps=1
    )
    losses, held_out = world.series("pretrain", "loss"), world.series("pretrain", "held_out_loss")
    assert losses[-1] < losses[0] - 1.0
    assert len(held_out) == 2
    assert held_out[-1] < held_out[0]
    assert world.published[0] == (1, 0)
    assert world.asked[0] == 0


def test_pretrain_then_sft_then_rl_in_one_run(play, tmp_path):
    """Each stage goes on from the weights of the one before; a learner that is resumed repeats none of them."""
    chats = [
        [{"role": "user", "content": f"{a}{b}?"}, {"role": "assistant", "content": a}] for a in "ab" for b in "cdef"
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    texts = GeneratedDocuments(make=lambda rng: "".join(rng.choice("abcdef?") for _ in range(rng.randint(3, 8))))
    stages = {
        "pretrain": Pretrain(source=texts, steps=20, documents_per_step=16, warmup_steps=5),
        "sft": Sft(
            source=JsonLines(paths=str(path), field=None, held_out_fraction=0.3),
            steps=40,
            documents_per_step=8,
            lr=1e-2,
        ),
        "checkpoint_every_steps": 1,
    }
    world = play(**stages, max_steps=2)
    pretrained, tuned = world.series("pretrain", "loss"), world.series("sft", "loss")
    assert (len(pretrained), len(tuned)) == (20, 40)
    assert tuned[-1] < 0.1 < tuned[0]
    held_out, perplexity = world.series("sft", "held_out_loss"), world.series("sft", "perplexity")
    assert perplexity == [math.exp(loss) for loss in held_out]
    assert len(held_out) == 1
    order = [m.stream for stream in ("pretrain", "sft", "train") for m in world.metrics[stream]]
    assert order == ["pretrain"] * 20 + ["sft"] * 40 + ["train"] * 2
    assert world.published[0] == (1, 0)
    assert play(**stages, checkpoints="again", max_steps=0).series("sft", "loss") == tuned
    second = play(**stages, max_steps=3)
    assert second.asked == [2]
    assert not second.series("pretrain", "loss") + second.series("sft", "loss")


@pytest.mark.parametrize("stage", ["pretrain", "sft"])
@pytest.mark.parametrize("at", [9, 10, 19])
def test_a_learner_that_dies_in_a_stage_goes_on_in_it(play, tmp_path, stage, at):
    """Weights, optimizer and documents: what follows is what would have followed, bit for bit."""

    class Ends(GeneratedDocuments):
        limit = math.inf

        def documents(self, seed):
            for number, document in enumerate(super().documents(seed)):
                if number >= self.limit:
                    raise ZeroDivisionError("the power is gone")
                yield document

    path = tmp_path / "chats.jsonl"
    chats = [[{"role": "user", "content": f"{a}?"}, {"role": "assistant", "content": a}] for a in "abcdef"]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))

    def stages(limit: float) -> dict[str, object]:
        texts = Ends(make=lambda rng: "".join(rng.choice("abcdef?") for _ in range(rng.randint(3, 8))))
        talks = Ends(make=lambda rng: {"messages": chats[rng.randrange(6)]})
        (texts if stage == "pretrain" else talks).limit = limit
        held_out = JsonLines(paths=str(path), field=None)
        return {
            "pretrain": Pretrain(
                source=texts, steps=20, documents_per_step=8, checkpoint_every_steps=5, warmup_steps=5, num_held_out=4
            ),
            "sft": Sft(
                source=talks,
                held_out=held_out,
                steps=20,
                documents_per_step=8,
                checkpoint_every_steps=5,
                warmup_steps=5,
            ),
        }

    whole = play(**stages(math.inf), max_steps=1, checkpoints="whole")
    with pytest.raises(ActorFailed, match="the power is gone"):
        play(**stages(8 * at), max_steps=1, checkpoints="cut")
    second = play(**stages(math.inf), max_steps=1, checkpoints="cut")
    saved = at // 5 * 5
    expected = {name: whole.series(name, "loss") for name in ("pretrain", "sft")}
    assert second.series(stage, "loss") == expected[stage][saved:]
    if stage == "sft":
        assert second.series("pretrain", "loss") == [], "that one was done"
    else:
        assert second.series("sft", "loss") == expected["sft"]
    assert second.series("train", "loss") == whole.series("train", "loss")


def test_a_lora_run_sends_adapters_alone_and_learns(play, tmp_path):
    """The peers sample from what they were sent: the probe's gap shows that it is what the learner trained."""
    settings = LoraSettings(rank=4, alpha=8.0)
    world = play(server=AdaptedParameterServer, lora=settings, lr=5e-3, max_steps=60, probe=LogprobProbe(num_prompts=4))
    assert np.mean(world.rewards[-512:]) > 0.62, "half of all tokens are even; the standard error is 0.02"
    factors = 4 * 4 * sum(a + b for a, b in [(32, 32), (32, 32), (32, 32), (32, 32), (32, 64), (32, 64), (64, 32)] * 2)
    assert {manifest.nbytes for manifest in world.manifests} == {factors}
    assert all(manifest.adapter.base is None for manifest in world.manifests), "the model folder has it"
    assert max(world.series("logprob_probe", "max")) < 1e-4
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert {path.name for path in newest.glob("*.safetensors")} == {"adapter_model.safetensors"}


def test_a_lora_run_pretrains_every_weight_and_goes_on_where_it_was(play, tmp_path):
    """The base that `pretrain` made travels with the first version of each life, the same bytes; and a KL penalty holds
    to it."""
    source = GeneratedDocuments(make=lambda rng: "".join(rng.choice("ab") for _ in range(rng.randint(3, 8))))
    pretrain = Pretrain(source=source, steps=30, documents_per_step=16)
    options = {
        "server": AdaptedParameterServer,
        "lora": LoraSettings(rank=4),
        "pretrain": pretrain,
        "kl": K2(coefficient=0.1),
        "checkpoint_every_steps": 1,
    }
    first = play(**options, max_steps=3)
    assert first.published[0] == (1, 0)
    assert first.series("pretrain", "loss")[-1] < first.series("pretrain", "loss")[0] - 1.0
    base = first.manifests[0].adapter.base
    assert base is not None
    assert all(manifest.adapter.base == base for manifest in first.manifests)
    second = play(**options, max_steps=5)
    assert not second.series("pretrain", "loss"), "it is not trained again"
    assert second.asked == [3, 4]
    again = second.manifests[0].adapter.base
    assert (again.tensors, again.buckets) == (base.tensors, base.buckets)
    assert again.location != base.location
    with pytest.raises(ActorFailed, match="holds adapters; resume with the settings of before"):
        play(max_steps=6)


class GroupsOfOne(FakeDispatcher):
    """As with training.group_size=1: nobody has a sibling."""

    @handles(NextBatch)
    async def next_batch(self, message: NextBatch) -> Batch:
        whole = await super().next_batch(message)
        alone = tuple(Group(t.spec.session_id, (t,)) for group in whole.groups for t in group.trajectories)
        return Batch(alone, whole.version_steps)


PPO: dict[str, Any] = {
    "dispatcher": GroupsOfOne,
    "objective": ClippedRatio(),
    "critic": CriticSettings(lr=1e-2),
    "num_minibatches": 4,
}


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
def test_with_a_critic_groups_of_one_learn(play, estimator):
    world = play(**PPO | {"critic": CriticSettings(estimator=estimator, lr=1e-2)}, max_steps=16)
    per_step = np.array(world.rewards).reshape(16, -1).mean(axis=1)
    assert per_step[0] < 0.75
    assert np.mean(per_step[-3:]) > 0.9
    assert world.series("train", "intake/refused") == [0.0] * 16
    assert world.series("train", "updates") == [4.0] * 16
    values, returns = world.series("train", "value/mean"), world.series("train", "value/return_mean")
    assert values[0] == 0.0
    assert abs(values[-1] - returns[-1]) < 0.25
    assert all(np.isfinite(v) for m in world.metrics["train"] for v in m.values.values())


def test_the_value_head_is_saved_and_gone_on_with_and_goes_nowhere_else(play, tmp_path, model_folder):
    from safetensors.torch import load_file

    first = play(**PPO, max_steps=3, checkpoint_every_steps=1)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    state = torch.load(newest / "trainer.pt", weights_only=True)
    head = state["value_head"]
    assert head["weight"].any()
    assert len(state["optimizer"]["state"]) == len(load_file(newest / "model.safetensors")) + 2
    assert load_file(newest / "model.safetensors").keys() == load_file(model_folder / "model.safetensors").keys()
    # lr 0 takes no step: what the second life saves is what it resumed, bit for bit.
    second = play(**PPO, max_steps=4, checkpoint_every_steps=1, lr=0.0)
    assert second.asked == [3]
    assert second.series("train", "value/mean") != [0.0]
    again = torch.load(list_checkpoints(tmp_path / "checkpoints")[-1] / "trainer.pt", weights_only=True)
    assert again["progress"]["step"] == 4
    assert all(torch.equal(head[name].view(torch.int32), again["value_head"][name].view(torch.int32)) for name in head)
    before, after = state["optimizer"]["state"], again["optimizer"]["state"]
    assert before.keys() == after.keys()
    assert all(torch.equal(before[i][name], after[i][name]) for i in before for name in before[i])
    assert first.published[-1][1] == 3
    export_checkpoint(tmp_path / "checkpoints", tmp_path / "exported")
    assert not list((tmp_path / "exported").glob("*.pt"))
    assert (
        load_file(tmp_path / "exported" / "model.safetensors").keys() == load_file(newest / "model.safetensors").keys()
    )


def test_a_checkpoint_is_not_resumed_with_another_critic(play):
    play(**PPO, max_steps=1, checkpoints="with")
    play(max_steps=1, checkpoints="without")
    without = {name: value for name, value in PPO.items() if name != "critic"}
    with pytest.raises(ActorFailed, match=r"learner.critic is not set, but .* holds a value head; resume with"):
        play(**without, max_steps=2, checkpoints="with")
    with pytest.raises(ActorFailed, match=r"learner.critic is set, but .* holds no value head; resume with"):
        play(**PPO, max_steps=2, checkpoints="without")
    with pytest.raises(ActorFailed, match="mlp_width"):
        play(**PPO | {"critic": CriticSettings(mlp_width=4)}, max_steps=2, checkpoints="with")


def test_with_adapters_the_head_is_trained_beside_them_and_resumed(play, tmp_path):
    options = PPO | {"server": AdaptedParameterServer, "lora": LoraSettings(rank=4), "checkpoint_every_steps": 1}
    first = play(**options, max_steps=2)
    sent = {name for manifest in first.manifests for name in (t.name for t in manifest.tensors)}
    assert all(".lora_" in name for name in sent)
    head = torch.load(list_checkpoints(tmp_path / "checkpoints")[-1] / "trainer.pt", weights_only=True)["value_head"]
    assert head["weight"].any()
    second = play(**options, max_steps=3)
    assert second.asked == [2]
    assert second.series("train", "value/mean") != [0.0]


def test_a_restarted_learner_goes_on_above_its_last_version(play, tmp_path):
    record = tmp_path / "trained.jsonl"
    first = play(max_steps=3, checkpoint_every_steps=1, trained_path=str(record))
    with record.open("a") as lines:
        lines.write('{"step": 4, "session_ids": ["lost"]}\n')
    second = play(max_steps=5, checkpoint_every_steps=1, trained_path=str(record))
    trained = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(t["step"], tuple(t["session_ids"])) for t in trained] == [
        (t.step, t.session_ids) for t in first.trained + second.trained[1:]
    ]
    assert second.trained[0] == first.trained[-1], "said once more: its acknowledgement may not have come"
    assert second.asked == [3, 4]
    assert first.resumed == []
    assert second.resumed == [LearnerResumed(step=3, version=first.published[-1][0], goes_on=True)]
    assert second.published[0] == (first.published[-1][0] + 1, 3)
    assert second.finished[0].step == 5
    # The restarted one began with what the first one had learned.
    assert np.mean(second.rewards[: GROUPS * MEMBERS]) >= np.mean(first.rewards[: GROUPS * MEMBERS])


def test_max_wall_s_ends_a_run_without_batches(play):
    world = play(dispatcher=NoBatches, max_wall_s=100.0, wait_s=30.0)
    assert world.finished == [TrainingFinished(step=0, version=1)]
    assert len(world.asked) == 4


def test_a_version_that_is_never_served_ends_the_run_by_name(play, caplog):
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(ActorFailed, match="no generator has acknowledged version 1 within 120"):
        play(server=DeafParameterServer)


def test_the_published_dtype_is_converted(play):
    world = play(weights_dtype="bfloat16", max_steps=1, probe=LogprobProbe())
    gaps = world.series("logprob_probe", "mean")
    assert all(0 < value < 0.03 for value in gaps)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lr": -1.0}, "lr"),
        ({"max_steps": -1}, "max_steps"),
        ({"mode": "both"}, "mode"),
        ({"weights_every_steps": 0}, "weights_every_steps"),
        ({"weights_buffers": 1}, "weights_buffers must be an integer from 2 to 64"),
        ({"weights_bucket_bytes": 2**63 - 1}, "weights_bucket_bytes must be an integer from 64 to"),
        ({"autocast": "fp8"}, "autocast"),
        ({"weights_dtype": "int4"}, r"weights_dtype must be null or one of bfloat16"),
        ({"weights_transport": "nope"}, r"weights_transport must be one of .*shm"),
        ({"num_ranks": 0}, "num_ranks must be >= 1"),
        ({"num_ranks": 2, "lora": LoraSettings()}, r"num_ranks must be 1 with learner.lora"),
        ({"weights_transport": "ipc", "lora": LoraSettings()}, r"weights_transport=ipc sends whole models"),
        ({"sleep_engines": True}, r"sleep_engines is for mode=sync, got mode=async"),
        ({"device": "moon"}, r"device must be cpu, cuda or cuda:N"),
        ({"publish_timeout_s": math.nan}, "publish_timeout_s"),
        ({"wait_s": math.nan}, "wait_s"),
        ({"max_wall_s": math.inf}, "max_wall_s"),
        ({"weight_decay": math.inf}, "weight_decay"),
        ({"clip_grad_norm": math.nan}, "clip_grad_norm"),
        ({"eps": math.nan}, "eps"),
        ({"lr": math.nan}, "lr"),
        ({"max_wall_s": 0.0}, "max_wall_s"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"checkpoint_keep_last": 0}, "checkpoint_keep_last"),
        ({"dispatcher_patience_s": 0}, "dispatcher_patience_s"),
    ],
)
def test_settings_that_cannot_work_are_named_before_anything_starts(settings, named):
    with pytest.raises(ValueError, match=named):
        Learner(model_path="m", checkpoints_dir="c", run_id="r", **settings)


def test_a_stopped_learner_saves_the_steps_since_its_last_checkpoint(play, tmp_path):
    """Ctrl-C: what was trained is not lost, and no staged weights stay behind."""
    world = play(stop_after_steps=2, max_steps=1000)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert read_info(newest).step == len(world.trained) >= 2
    assert not world.finished
    assert not list(Path("/dev/shm").glob(f"*{world.run_id}*"))


@pytest.fixture
def during_optimizer(monkeypatch):
    """`during_optimizer(n, then)`: `then` is called in the worker thread while the optimizer is at its n-th step.
    Returns the weights after each step so far, as one vector."""

    def set_up(number: int, then: Callable[[], None]) -> dict[int, torch.Tensor]:
        after: dict[int, torch.Tensor] = {}
        whole_step = Optimizer.step

        def step(optimizer: Optimizer, lr: float) -> tuple[float, bool]:
            done = whole_step(optimizer, lr)
            after[len(after) + 1] = torch.cat([p.detach().flatten() for p in optimizer._parameters])
            if len(after) == number:
                then()
            return done

        monkeypatch.setattr(Optimizer, "step", step)
        return after

    return set_up


def test_a_stop_while_the_optimizer_is_at_work_saves_that_step_under_its_own_number(
    play, tmp_path, during_optimizer, monkeypatch
):
    """The dispatcher has not heard of it: the learner's next life tells it."""
    record = tmp_path / "trained.jsonl"
    stopping = threading.Event()
    interrupt = Policy.interrupt
    monkeypatch.setattr(Policy, "interrupt", lambda policy: (interrupt(policy), stopping.set()))
    peers: list[StoppingDispatcher] = []

    class StoppingDispatcher(FakeDispatcher):
        async def on_start(self, context: Context) -> None:
            self.loop = asyncio.get_running_loop()
            peers.append(self)

        def stop_run(self) -> None:
            """In the learner's worker thread, which it holds until the learner is being stopped."""
            self.loop.call_soon_threadsafe(self.done.set)
            assert stopping.wait(60)

    after = during_optimizer(3, lambda: peers[0].stop_run())
    settings: dict[str, Any] = {"dispatcher": StoppingDispatcher, "run": asyncio.run, "trained_path": str(record)}
    first = play(**settings, stop_after_steps=100, max_steps=100)
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    saved = torch.cat([p.detach().flatten() for p in Policy.load(newest).model.parameters()])
    assert read_info(newest).step == 3
    assert torch.equal(saved, after[3])
    assert [trained.step for trained in first.trained] == [1, 2]
    assert [json.loads(line)["step"] for line in record.read_text().splitlines()] == [1, 2, 3]
    second = play(**settings, max_steps=4)
    assert [trained.step for trained in second.trained] == [3, 4]
    assert second.asked == [3]


def test_weights_that_are_published_anew_during_a_step_name_the_step_that_they_hold(
    play, during_optimizer, monkeypatch
):
    peers: list[RefusingParameterServer] = []
    staged = threading.Event()
    claim = VersionLog.claim
    monkeypatch.setattr(VersionLog, "claim", lambda log, step: (claim(log, step), log.newest > 1 and staged.set())[0])

    class RefusingParameterServer(FakeParameterServer):
        async def on_start(self, context: Context) -> None:
            self.loop = asyncio.get_running_loop()
            self.held: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}
            peers.append(self)

        def refuse_newest(self) -> None:
            """In the learner's worker thread, which it holds until the learner has heard it; and from there the event
            loop is held until the worker thread has come to the weights."""
            refusal = WeightsRefused(self.world.version, "a fault of the test")
            refused = self.context.ask("learner", refusal, timeout_s=60)
            asyncio.run_coroutine_threadsafe(refused, self.loop).result(60)
            self.loop.call_soon_threadsafe(staged.wait, 60)

        async def serve(self, message: PublishWeights) -> None:
            self.held[message.manifest.version] = message.manifest.step, read(message.manifest)
            await super().serve(message)

    after = during_optimizer(3, lambda: peers[0].refuse_newest())
    world = play(
        server=RefusingParameterServer, run=asyncio.run, max_steps=5, weights_buffers=4, weights_every_steps=100
    )
    names = [name for name, _ in world.model.named_parameters()]
    assert len(world.published) == 3, "the first, the last, and between them one anew"
    for version, (step, tensors) in peers[0].held.items():
        weights = torch.cat([tensors[name].flatten() for name in names])
        assert step == 0 or torch.equal(weights, after[step]), f"version {version}"


def test_a_checkpoint_is_written_beside_training_and_is_what_one_that_is_waited_for_would_be(play, tmp_path):
    beside = play(max_steps=4, checkpoint_every_steps=4, checkpoints="beside")
    waited = play(max_steps=4, checkpoint_every_steps=4, checkpoint_async=False, checkpoints="waited")
    assert beside.rewards == waited.rewards
    (one,), (other,) = (list_checkpoints(tmp_path / name)[-1:] for name in ("beside", "waited"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    states = [torch.load(folder / "trainer.pt", weights_only=True) for folder in (one, other)]
    for state in states:
        state["progress"].pop("wall_s")
        state.pop("random")
    assert str(states[0]) == str(states[1])


def test_a_full_disk_stops_no_training_but_the_end_needs_its_checkpoint(play, tmp_path, monkeypatch):
    room = {"left": 1}
    save = CheckpointStore.save

    def until_full(self, info, model, state):
        if info.step and not room["left"]:
            raise OSError(28, "No space left on device")
        return save(self, info, model, state)

    monkeypatch.setattr(CheckpointStore, "save", until_full)
    room["left"] = 0
    with pytest.raises(ActorFailed, match="No space left on device"):
        play(max_steps=3, checkpoint_every_steps=1)
    assert [folder.name for folder in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000"]
    room["left"] = 1
    world = play(max_steps=3, checkpoint_every_steps=1)
    assert world.asked == [0, 1, 2], "it goes on from the one that was written"
    assert world.finished[0].step == 3


def test_running_statistics_are_in_the_checkpoint(play):
    first = RunningMean()
    play(max_steps=2, checkpoint_every_steps=1, advantage=first)
    second = RunningMean()
    play(max_steps=2, checkpoint_every_steps=1, advantage=second)
    assert first.state_dict()
    assert second.state_dict() == first.state_dict()


def test_the_checkpoint_that_evaluations_find_best_is_kept(play, tmp_path):
    class Evaluates(FakeDispatcher):
        @handles(BatchTrained)
        async def batch_trained(self, message: BatchTrained) -> Accepted:
            if message.step > 1:  # of the step before, which is saved by now
                await self.context.tell("learner", VersionEvaluated(message.step, message.step - 1, -message.step))
            return await super().batch_trained(message)

    play(dispatcher=Evaluates, max_steps=6, checkpoint_every_steps=1, checkpoint_keep_last=2, checkpoint_async=False)
    assert (tmp_path / "checkpoints" / "best").resolve().name == "step-000001"
    kept = [folder.name for folder in list_checkpoints(tmp_path / "checkpoints")]
    assert kept == ["step-000001", "step-000005", "step-000006"]
