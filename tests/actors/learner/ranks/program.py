"""A learner of SIZE ranks, each a process, that trains on made-up batches: what it saw, as JSON.

    python program.py SIZE MODEL CHECKPOINTS CASE FIRST_STEP NUM_STEPS OUT [RANK PORT]

Rank 0 starts the others. Steps are numbered from 0 and made of their number, so that runs can be cut anywhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.actors.learner.advantages import RunningMean
from headrace.actors.learner.aggregation import SequenceMean, TokenMean
from headrace.actors.learner.checkpoint import CheckpointStore
from headrace.actors.learner.corrections import Icepop
from headrace.actors.learner.kl import K1, K2
from headrace.actors.learner.objectives import DecoupledPpo, IsReinforce
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.ranks import ALONE
from headrace.actors.learner.ranks.group import LOOPBACK, RankGroup, join_store, open_store
from headrace.actors.learner.replay import _Offline
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.threads import ComputeThreads
from headrace.actors.learner.workbench import Workbench
from headrace.transport.weights import SenderSettings, make_sender, open_weights

TIMEOUT_S = 60.0
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"packing": PackingSettings(tokens_per_row=40, tokens_per_micro_batch=80), "aggregation": SequenceMean()},
    "several_updates": {"objective": DecoupledPpo(), "num_minibatches": 2, "num_epochs": 2, "kl": K2(coefficient=0.1)},
    "kl_in_reward": {"kl": K1(coefficient=0.1, whiten=True)},
    "ess": {"lr_ess_scaling": True, "corrections": {"icepop": Icepop()}},
    "bfloat16": {"autocast": "bfloat16"},
}


def batch_of(step: int) -> list[TrainSequence]:
    """1 to 9 sequences of 6 to 40 tokens: also fewer than there are ranks."""
    rng = np.random.default_rng(1000 + step)
    return [sequence(rng, int(rng.integers(6, 41))) for _ in range(int(rng.integers(1, 10)))]


def sequence(rng: np.random.Generator, length: int) -> TrainSequence:
    mask = np.arange(length) >= 3
    return TrainSequence(
        token_ids=rng.integers(3, 90, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, rng.normal(-4.5, 0.4, length), 0.0).astype(np.float32),
        versions=np.where(mask, 1, -1).astype(np.int32),
        advantage=float(rng.normal()),
        temperature=float(rng.choice([0.7, 1.0])),
    )


def make_bench(threads: ComputeThreads, ranks: Any, model: Path, checkpoints: Path, case: dict[str, Any]) -> Workbench:
    return Workbench(
        threads,
        CheckpointStore(checkpoints, model_folder=model),
        model,
        objective=case.get("objective", IsReinforce()),
        aggregation=case.get("aggregation", TokenMean()),
        corrections=case.get("corrections", {}),
        num_minibatches=case.get("num_minibatches", 1),
        num_epochs=case.get("num_epochs", 1),
        lr_ess_scaling=case.get("lr_ess_scaling", False),
        packing=case.get("packing", PackingSettings(tokens_per_micro_batch=60)),
        adam=AdamSettings(),
        autocast=case.get("autocast", "none"),
        logits_chunk_tokens=16,
        device="cpu",
        seed=0,
        advantage=RunningMean(),
        ranks=ranks,
    )


async def learn(bench: Workbench, case: dict[str, Any], first: int, num: int, out: Path) -> None:
    if "kl" in case:
        await bench.penalise(case["kl"])
    found: dict[str, Any] = {"resumed_at": bench.progress.step, "reports": []}
    for step in range(first, first + num):
        report = await bench.run("train", bench.trainer.step, batch_of(step), 1e-3)
        bench.progress.step = step + 1
        found["reports"].append(
            [report.loss, report.grad_norm, report.num_trained, report.num_clipped, report.penalty, report.lr_scale]
        )
        found["logprobs_sum"] = float(report.logprobs_N.sum())
    sequences = batch_of(7)
    found["logprobs"] = [own.tolist() for own in await bench.logprobs(sequences)]
    found["evaluated"] = await bench.run("evaluate", bench.trainer.evaluate, sequences)
    observed = await bench.observe(sequences[:1], ["none", "bfloat16"])()
    found["observed"] = {name: own[0].tolist() for name, own in observed.items()}
    found["published"] = await bench.run("stage", publish, bench)
    await bench.save_beside(1, bench.progress.step)
    await bench.save_new_steps(1, bench.progress.step)
    out.write_text(json.dumps(found))  # noqa: ASYNC240


def publish(bench: Workbench) -> dict[str, float]:
    """Through a real sender and receiver: the sum of each tensor."""
    sender = make_sender("shm", SenderSettings(run_id=f"ranks-{os.getpid()}", bucket_bytes=4096))
    try:
        staged = sender.stage(bench.tensors(), version=1, step=1)
        assert staged is not None
        receiver = open_weights(staged.seal())
        receiver.verify()
        return {name: float(tensor.double().sum()) for name, tensor in receiver.tensors(include_tied=True)}
    finally:
        sender.close()


async def main(
    size: int, model: Path, checkpoints: Path, name: str, first: int, num: int, out: Path, *rest: str
) -> None:
    torch.set_num_threads(1)
    threads = ComputeThreads(_Offline(), num_threads=1)
    case = CASES[name.removesuffix("!")]
    if size == 1:
        bench = await threads.run("load", make_bench, threads, ALONE, model, checkpoints, case)
        return await learn(bench, case, first, num, out)

    def meet(store: Any, rank: int) -> RankGroup:
        return RankGroup(store, rank=rank, size=size, device=torch.device("cpu"), host=LOOPBACK)

    if rest:  # one of the others
        store = join_store(LOOPBACK, int(rest[1]), size, timeout_s=TIMEOUT_S)
        group = await threads.run("meet", meet, store, int(rest[0]))
        bench = await threads.run("load", make_bench, threads, group, model, checkpoints, case)
        return await threads.run("serve", bench.serve, group.heard)
    store, port = open_store(LOOPBACK, size, timeout_s=TIMEOUT_S)
    command = [sys.executable, *sys.argv]
    others = [subprocess.Popen([*command, str(rank), str(port)]) for rank in range(1, size)]  # noqa: ASYNC220
    group = await threads.run("meet", meet, store, 0)
    bench = await threads.run("load", make_bench, threads, group, model, checkpoints, case)
    if name.endswith("!"):
        await learn_and_lose_one(bench, others[0], out)
    else:
        await learn(bench, case, first, num, out)
        await threads.run("end", group.end)
        assert [other.wait(TIMEOUT_S) for other in others] == [0] * len(others)


async def learn_and_lose_one(bench: Workbench, other: Any, out: Path) -> None:
    """A rank is killed between two steps: the next one raises, and does not hang."""
    await bench.run("train", bench.trainer.step, batch_of(0), 1e-3)
    other.send_signal(signal.SIGKILL)
    other.wait(TIMEOUT_S)
    try:
        await bench.run("train", bench.trainer.step, batch_of(1), 1e-3)
    except RuntimeError as error:
        out.write_text(json.dumps({"raised": str(error)}))  # noqa: ASYNC240


if __name__ == "__main__":
    size, model, checkpoints, name, first, num, out, *rest = sys.argv[1:]
    asyncio.run(main(int(size), Path(model), Path(checkpoints), name, int(first), int(num), Path(out), *rest))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads have nothing to say any more
