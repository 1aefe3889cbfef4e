"""The learner's whole loss against a slow NumPy twin; its independence of the split; and steps that must not happen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.kl import K2
from headrace.actors.learner.objectives import CrossEntropy, IsReinforce
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.trainer import Trainer


def make_trainer(policy, packing=None, objective=None, **adam) -> Trainer:
    return Trainer(
        policy,
        Optimizer(policy.model.parameters(), AdamSettings(**adam)),
        objective=objective or IsReinforce(),
        aggregation=TokenMean(),
        packing=packing or PackingSettings(),
    )


def slow_loss(policy: Policy, sequences: list[TrainSequence]) -> float:
    """is_reinforce + token mean, one sequence and one token at a time, float64, no packing."""
    total, num_tokens = 0.0, 0
    for sequence in sequences:
        with torch.no_grad():
            logits = policy.model(input_ids=torch.from_numpy(sequence.token_ids.astype(np.int64))[None]).logits[0]
        for t in range(1, len(sequence.token_ids)):
            if not sequence.loss_mask[t]:
                continue
            row = logits[t - 1].double().numpy() / sequence.temperature
            logp = row[sequence.token_ids[t]] - row.max() - math.log(np.exp(row - row.max()).sum())
            w = math.exp(min(20.0, max(-20.0, logp - sequence.logprobs[t])))
            if 0.05 <= w <= 10.0:
                total += min(w, 5.0) * sequence.advantage * logp
            num_tokens += 1
    return -total / num_tokens


def gradients(policy: Policy) -> np.ndarray:
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()]).numpy()


@pytest.mark.parametrize("tokens_per_row", [0, 48])
def test_the_loss_equals_the_slow_twin(policy, make_sequence, tokens_per_row):
    sequences = [make_sequence(i, 5 + i, temperature=0.8 + 0.1 * (i % 3)) for i in range(12)]
    trainer = make_trainer(policy, PackingSettings(tokens_per_row, 100))
    assert trainer.backward(sequences) == pytest.approx(slow_loss(policy, sequences), abs=1e-5)
    assert trainer.evaluate(sequences) == pytest.approx(slow_loss(policy, sequences), abs=1e-5)


@pytest.mark.parametrize("packing", [(0, 20), (0, 64), (32, 64), (1000, 10**6)])
def test_gradients_do_not_depend_on_the_split(policy, make_sequence, packing):
    """cases B46: one micro-batch and many give the same gradient to 1e-6."""
    sequences = [make_sequence(i, 4 + 3 * (i % 6)) for i in range(14)]
    whole_loss = make_trainer(policy, PackingSettings(0, 10**6)).backward(sequences)
    whole = gradients(policy)
    policy.model.zero_grad()
    split_loss = make_trainer(policy, PackingSettings(*packing)).backward(sequences)
    assert split_loss == pytest.approx(whole_loss, abs=1e-6)
    np.testing.assert_allclose(gradients(policy), whole, atol=1e-6)


@pytest.mark.parametrize("packing", [(0, 10**6), (32, 64)])
def test_the_penalty_equals_its_slow_twin(policy, other_policy, make_sequence, packing):
    """k2, token mean: β · mean of ½(log pi − log pi_ref)², on top of the loss without it."""
    sequences = [make_sequence(i, 6 + i) for i in range(6)]
    trainer = make_trainer(policy, PackingSettings(*packing))
    plain = trainer.evaluate(sequences)
    trainer.penalise(K2(coefficient=0.3), other_policy)
    ours, theirs = (
        np.concatenate(make_trainer(p).logprobs(sequences)).astype(np.float64) for p in (policy, other_policy)
    )
    expected = 0.3 * np.mean(0.5 * (ours - theirs) ** 2)
    assert expected > 1e-3
    assert trainer.evaluate(sequences) - plain == pytest.approx(expected, rel=1e-3)
    assert trainer.step(sequences, 0.0).penalty == pytest.approx(expected, rel=1e-3)


def test_the_penalty_alone_pulls_back(policy, other_policy, make_sequence):
    sequences = [
        TrainSequence(s.token_ids, s.loss_mask, s.logprobs, s.versions, advantage=0.0)
        for s in (make_sequence(i) for i in range(4))
    ]
    trainer = make_trainer(policy)
    trainer.penalise(K2(coefficient=1.0), other_policy)
    penalties = [trainer.step(sequences, 3e-3).penalty for _ in range(20)]
    assert penalties[-1] < 0.5 * penalties[0]
    assert not any(p.grad is not None for p in other_policy.model.parameters())


def test_cross_entropy_counts_every_token_once(policy, make_sequence):
    sequences = [make_sequence(i, 8) for i in range(5)]
    trainer = make_trainer(policy, objective=CrossEntropy())
    logprobs = np.concatenate(trainer.logprobs(sequences))
    assert trainer.evaluate(sequences) == pytest.approx(-logprobs.mean(), abs=1e-6)


def test_the_report_lines_tokens_up(policy, make_sequence):
    """Log-probs, versions and owners of one index belong to one token, whatever the micro-batches did."""
    sequences = [make_sequence(i, 5 + i % 4) for i in range(9)]
    trainer = make_trainer(policy, PackingSettings(16, 32))
    alone = trainer.logprobs(sequences)
    report = trainer.step(sequences, 0.0)
    assert report.num_micro_batches > 1
    for i, sequence in enumerate(sequences):
        mine = report.sequence_N == i
        np.testing.assert_allclose(report.logprobs_N[mine], alone[i], atol=1e-6)
        np.testing.assert_array_equal(report.behaviour_N[mine], sequence.logprobs[sequence.loss_mask])


def test_lr_0_leaves_every_bit(policy, make_sequence):
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    report = make_trainer(policy, weight_decay=0.1).step([make_sequence(0)], 0.0)
    assert not report.applied
    assert report.grad_norm > 0
    for name, p in policy.model.named_parameters():
        assert (p.detach().view(torch.int32) == before[name].view(torch.int32)).all()


def test_a_gradient_that_is_not_finite_takes_no_step(policy, make_sequence):
    with torch.no_grad():
        policy.model.lm_head.weight[5, 0] = float("inf")
    before = policy.model.model.embed_tokens.weight.detach().clone()
    report = make_trainer(policy).step([make_sequence(0)], 1e-3)
    assert not report.applied
    assert torch.equal(policy.model.model.embed_tokens.weight, before)


def test_clipping_bounds_the_gradient(policy, make_sequence):
    trainer = make_trainer(policy, clip_grad_norm=1e-3)
    seen = []
    original = trainer.optimizer._adam.step
    trainer.optimizer._adam.step = lambda: (seen.append(np.linalg.norm(gradients(policy))), original())
    report = trainer.step([make_sequence(0)], 1e-3)
    assert report.grad_norm > 1e-3
    assert seen == [pytest.approx(1e-3, rel=1e-3)]


def test_a_positive_advantage_raises_the_probability(policy, make_sequence):
    sequence = make_sequence(0)
    sequences = [
        TrainSequence(sequence.token_ids, sequence.loss_mask, logprobs, sequence.versions, advantage=1.0)
        for logprobs in [np.zeros(len(sequence.token_ids), dtype=np.float32)]
    ]
    trainer = make_trainer(policy, objective=IsReinforce(mask_below=0.0))
    before = trainer.logprobs(sequences)[0].sum()
    for _ in range(5):
        trainer.step(sequences, 1e-2)
    assert trainer.logprobs(sequences)[0].sum() > before


def test_nothing_to_train_is_refused(policy):
    """cases B44: a mean over nothing does not exist; the stage leaves the step out."""
    with pytest.raises(ValueError, match="nothing to train"):
        make_trainer(policy).step([], 1e-3)
