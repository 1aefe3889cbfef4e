"""Every combination of the loss's parts that is allowed: gradients do not depend on the split. Several updates of a
batch: the same as steps written out by hand. Tokens that corrections leave out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.actors.learner.aggregation import Aggregation, Constant, PromptMean, SequenceMean, TokenMean
from headrace.actors.learner.corrections import Correction, Geo, Icepop, Mis, Opsm, Tis, Veto
from headrace.actors.learner.kl import K1, K2, K3, KlPenalty
from headrace.actors.learner.objectives import (
    Cispo,
    ClippedRatio,
    DecoupledPpo,
    Dppo,
    Gspo,
    IsReinforce,
    Objective,
    Topr,
)
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.trainer import Trainer, minibatches

EPS = 1e-3  # of Adam: gradients that are nearly 0 have no sign to go by
WHOLE, SPLIT = PackingSettings(0, 10**6), PackingSettings(24, 30)
OBJECTIVES: dict[str, Objective] = {
    "is_reinforce": IsReinforce(), "cispo": Cispo(), "cispo rho": Cispo(ratio="rho"), "clipped": ClippedRatio(),
    "gspo": Gspo(), "decoupled": DecoupledPpo(), "decoupled interpolated": DecoupledPpo(proximal="interpolated"),
    "topr": Topr(), "dppo": Dppo(),
}  # fmt: skip
AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": TokenMean(), "sequence_mean": SequenceMean(), "constant": Constant(tokens=20),
    "prompt_mean": PromptMean(),
}  # fmt: skip
CORRECTIONS: dict[str, Correction] = {
    "tis": Tis(), "icepop": Icepop(), "mis": Mis(), "mis sequence": Mis(level="sequence"), "veto": Veto(below=0.5),
    "opsm": Opsm(delta=0.05), "geo": Geo(low=0.9, high=1.1),
}  # fmt: skip
KLS: dict[str, KlPenalty] = {"k1": K1(coefficient=0.1), "k2": K2(coefficient=0.1), "k3": K3(coefficient=0.1)}


def make_trainer(policy: Policy, packing: PackingSettings = WHOLE, **parts: Any) -> Trainer:
    given: dict[str, Any] = {"objective": ClippedRatio(), "aggregation": TokenMean()} | parts
    optimizer = Optimizer(policy.model.parameters(), AdamSettings(eps=EPS, clip_grad_norm=0.0))
    return Trainer(policy, optimizer, packing=packing, **given)


def gradients(policy: Policy) -> np.ndarray:
    found = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]).numpy().copy()
    policy.model.zero_grad(set_to_none=True)
    return found


@pytest.fixture
def sequences(policy: Policy, make_sequence: Any) -> list[TrainSequence]:
    """Five groups of three, sampled near the policy, of lags 0 to 3."""
    drawn = [replace(make_sequence(i, 4 + 3 * (i % 5)), group=i // 3) for i in range(15)]
    probe = make_trainer(policy)
    rng = np.random.default_rng(0)
    out = []
    for sequence, logprobs in zip(drawn, probe.logprobs(drawn), strict=True):
        near = sequence.logprobs.copy()
        near[sequence.loss_mask] = logprobs + rng.normal(0, 0.4, len(logprobs)).astype(np.float32)
        lags = np.where(sequence.loss_mask, rng.integers(0, 4, len(near)), 0).astype(np.int32)
        out.append(replace(sequence, logprobs=near, lags=lags))
    return out


def allowed() -> list[Any]:
    """Each objective with each aggregation and each correction that may stand before it, or none."""
    found = []
    for (objective, o), aggregation in itertools.product(OBJECTIVES.items(), AGGREGATIONS):
        for correction in (None, *CORRECTIONS):
            if correction is None or CORRECTIONS[correction].kind == "mask" or o.takes_weights:
                found.append(
                    pytest.param(objective, aggregation, correction, id=f"{objective}-{aggregation}-{correction}")
                )
    return found


@pytest.mark.parametrize(("objective", "aggregation", "correction"), allowed())
def test_gradients_do_not_depend_on_the_split(
    policy: Policy, sequences: list[TrainSequence], objective: str, aggregation: str, correction: str | None
) -> None:
    parts = {
        "objective": OBJECTIVES[objective],
        "aggregation": AGGREGATIONS[aggregation],
        "corrections": {} if correction is None else {"it": CORRECTIONS[correction]},
    }
    whole_loss = make_trainer(policy, WHOLE, **parts).backward(sequences)
    whole = gradients(policy)
    split_loss = make_trainer(policy, SPLIT, **parts).backward(sequences)
    assert np.abs(whole).max() > 1e-3, "it trains something"
    assert split_loss == pytest.approx(whole_loss, abs=1e-5)
    np.testing.assert_allclose(gradients(policy), whole, atol=1e-5)


@pytest.mark.parametrize("kl", list(KLS))
@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_nor_with_a_kl(
    policy: Policy, other_policy: Policy, sequences: list[TrainSequence], kl: str, aggregation: str
) -> None:
    found = []
    for packing in (WHOLE, SPLIT):
        trainer = make_trainer(policy, packing, aggregation=AGGREGATIONS[aggregation])
        trainer.penalise(KLS[kl], other_policy)
        trainer.backward(sequences)
        found.append(gradients(policy))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)


def test_a_dead_group_still_has_the_gradient_of_its_kl(
    policy: Policy, other_policy: Policy, sequences: list[TrainSequence]
) -> None:
    dead = [replace(sequence, advantage=0.0) for sequence in sequences]
    make_trainer(policy).backward(dead)
    assert np.abs(gradients(policy)).max() == 0
    trainer = make_trainer(policy)
    trainer.penalise(K2(coefficient=0.1), other_policy)
    trainer.backward(dead)
    assert np.abs(gradients(policy)).max() > 1e-4


class _Nothing:
    """Leaves every token out."""

    kind = "mask"

    def __call__(self, tokens: Any) -> torch.Tensor:
        return torch.zeros_like(tokens.logprobs_N)


def test_where_corrections_leave_all_out_nothing_moves(policy: Policy, sequences: list[TrainSequence]) -> None:
    before = [p.detach().clone() for p in policy.model.parameters()]
    optimizer = Optimizer(policy.model.parameters(), AdamSettings(weight_decay=0.0))
    trainer = Trainer(
        policy, optimizer, objective=ClippedRatio(), aggregation=TokenMean(), packing=WHOLE,
        corrections={"all": _Nothing()},
    )  # fmt: skip
    report = trainer.step(sequences, 1e-2)
    assert (report.loss, report.grad_norm) == (0.0, 0.0)
    assert report.corrections == {"all": (0.0, 1.0)}
    for then, now in zip(before, policy.model.parameters(), strict=True):
        assert torch.equal(then, now)


def by_hand(
    policy: Policy, sequences: list[TrainSequence], parts: list[list[int]], lr: float, objective: Callable[..., Any]
) -> None:
    """Token mean, one part after the other; pi_old is the policy of the beginning."""
    probe = make_trainer(policy)
    old = [torch.from_numpy(logprobs) for logprobs in probe.logprobs(sequences)]
    adam = torch.optim.AdamW(policy.model.parameters(), lr=lr, betas=(0.9, 0.95), eps=EPS, weight_decay=0.0)
    for part in parts:
        loss, count = torch.zeros(()), sum(sequences[i].num_trained for i in part)
        for i in part:
            ids = torch.from_numpy(sequences[i].token_ids.astype(np.int64))
            places = np.flatnonzero(sequences[i].loss_mask)
            logits = policy.model(input_ids=ids[None]).logits[0, places - 1] / sequences[i].temperature
            logprobs = torch.log_softmax(logits, -1)[torch.arange(len(places)), ids[places]]
            loss = loss - objective(logprobs, old[i], sequences[i].advantage).sum() / count
        adam.zero_grad()
        loss.backward()
        adam.step()


def clipped(logprobs: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    rho = (logprobs - old).exp()
    return torch.minimum(rho * advantage, rho.clamp(0.8, 1.2) * advantage)


@pytest.mark.parametrize(("num_minibatches", "num_epochs"), [(1, 3), (3, 1), (2, 2)])
def test_several_updates_are_the_steps_written_out(
    model_folder: Any, sequences: list[TrainSequence], num_minibatches: int, num_epochs: int
) -> None:
    ours, theirs = Policy.load(model_folder), Policy.load(model_folder)
    trainer = make_trainer(ours, SPLIT, num_minibatches=num_minibatches, num_epochs=num_epochs)
    report = trainer.step(sequences, 3e-3)
    assert report.num_updates == num_minibatches * num_epochs
    assert report.num_clipped > 0, "rho has left 1"
    parts = [list(part) for _ in range(num_epochs) for part in minibatches(len(sequences), num_minibatches)]
    assert sorted(itertools.chain(*parts[:num_minibatches])) == list(range(len(sequences)))
    by_hand(theirs, sequences, parts, 3e-3, clipped)
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), atol=2e-5)


def test_the_learning_rate_follows_the_effective_sample_size(model_folder: Any, sequences: list[TrainSequence]) -> None:
    """VCPO: lr · √(ESS/N), of w over the tokens of the update."""
    policy = Policy.load(model_folder)
    logprobs = make_trainer(policy).logprobs(sequences)
    ratios = np.exp(
        np.concatenate([p - s.logprobs[s.loss_mask] for p, s in zip(logprobs, sequences, strict=True)]).astype(float)
    )
    expected = float(np.sqrt(ratios.sum() ** 2 / (len(ratios) * (ratios**2).sum())))
    report = make_trainer(policy, SPLIT, lr_ess_scaling=True).step(sequences, 1e-3)
    assert 0 < expected < 0.99
    assert report.lr_scale == pytest.approx(expected, rel=1e-5)
    assert report.lr == pytest.approx(1e-3 * expected, rel=1e-5)


def test_whitened_k1_is_its_slow_twin(policy: Policy, other_policy: Policy, sequences: list[TrainSequence]) -> None:
    from twins.kl import reinforce_pp

    trainer = make_trainer(policy)
    pi = trainer.logprobs(sequences)
    reference = make_trainer(other_policy).logprobs(sequences)
    penalties = [list(0.1 * (p.astype(float) - r.astype(float))) for p, r in zip(pi, reference, strict=True)]
    trainer.penalise(K1(coefficient=0.1, whiten=True), other_policy)
    found = trainer._prepare(sequences).advantages
    expected = reinforce_pp([s.advantage for s in sequences], penalties, whiten=True)
    for ours, twin in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, twin, atol=1e-4)


def test_names_are_those_of_the_folders() -> None:
    """A part that is added is combined here too."""
    from headrace.actors.learner import aggregation, corrections, objectives

    def classes(module: Any, given: Mapping[str, Any], protocols: set[str]) -> None:
        assert {name for name in module.__all__ if name not in protocols} == {
            type(part).__name__ for part in given.values()
        }

    classes(aggregation, AGGREGATIONS, {"Aggregation"})
    classes(corrections, CORRECTIONS, {"Correction"})
    classes(objectives, OBJECTIVES, {"Objective", "ObjectiveTerms", "TrainedTokens", "CrossEntropy"})
