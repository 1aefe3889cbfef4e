"""A critic in the trainer: its loss against a slow twin, what the head learns, and what it must not move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from twins import critic as twins

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.corrections import Tis
from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.figures.step import step_figures
from headrace.actors.learner.kl import K1
from headrace.actors.learner.objectives import ClippedRatio, IsReinforce
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.trainer import Trainer
from headrace.actors.learner.value_head import Critic


def make_trainer(
    policy: Policy, settings: CriticSettings, *, packing: tuple[int, int] = (0, 2048), noise: float = 0.0, **given: Any
) -> Trainer:
    torch.manual_seed(0)
    critic = Critic(settings, hidden_size=policy.hidden_size, device=policy.device)
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    optimizer = Optimizer(policy.model.parameters(), AdamSettings(), head=critic.head.parameters(), head_lr=settings.lr)
    return Trainer(
        policy,
        optimizer,
        objective=given.pop("objective", ClippedRatio()),
        aggregation=TokenMean(),
        packing=PackingSettings(*packing),
        critic=critic,
        **given,
    )


def rewarded(sequence: TrainSequence, reward: float) -> TrainSequence:
    return replace(sequence, reward=reward)


@pytest.fixture
def sequences(policy, make_sequence) -> list[TrainSequence]:
    """With tool output in the middle, log mu near log pi, and rewards that differ."""
    made = [make_sequence(i, 5 + i % 7) for i in range(10)]
    near = make_trainer(policy, CriticSettings()).logprobs(made)
    out = []
    for i, (sequence, logprobs) in enumerate(zip(made, near, strict=True)):
        behaviour = np.zeros(len(sequence.token_ids), dtype=np.float32)
        behaviour[sequence.loss_mask] = logprobs + np.random.default_rng(i).normal(0, 0.4, len(logprobs))
        out.append(replace(sequence, logprobs=behaviour, reward=float(i % 3)))
    return out


def values_of(trainer: Trainer, sequence: TrainSequence) -> np.ndarray:
    """V before each trained token, the sequence by itself: the state that the token's predecessor leaves."""
    policy, critic = trainer.policy, trainer._critic
    assert critic is not None
    with torch.no_grad():
        ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
        hidden = policy.model.model(input_ids=ids).last_hidden_state[0]
        before = torch.from_numpy(np.flatnonzero(sequence.loss_mask) - 1)
        return critic.values(hidden[before]).double().numpy()


def gradients(trainer: Trainer) -> tuple[np.ndarray, np.ndarray]:
    critic = trainer._critic
    assert critic is not None
    found = []
    for module in (trainer.policy.model, critic.head):
        found.append(torch.cat([p.grad.flatten() for p in module.parameters()]).numpy().copy())
        module.zero_grad()
    return found[0], found[1]


@pytest.mark.parametrize("estimator", ["gae", "vtrace"])
@pytest.mark.parametrize("packing", [(0, 2048), (32, 64)])
def test_the_loss_equals_the_slow_twin(policy, sequences, estimator, packing):
    """− mean of A + coefficient · mean of the value loss, as rho = 1 and V = V_old before the first update."""
    gamma, lam = 0.97, 0.9
    settings = CriticSettings(estimator=estimator, gamma=gamma, gae_lambda=lam, whiten=False, coefficient=0.3)
    trainer = make_trainer(policy, settings, packing=packing, noise=0.3)
    logprobs = trainer.logprobs(sequences)
    advantages, losses = [], []
    for sequence, old in zip(sequences, logprobs, strict=True):
        values = values_of(trainer, sequence)
        rewards = [0.0] * (len(values) - 1) + [sequence.reward]
        ratios = np.exp(old.astype(np.float64) - sequence.logprobs[sequence.loss_mask])
        if estimator == "gae":
            credit = twins.gae(rewards, values, gamma, lam)
            targets = [a + v for a, v in zip(credit, values, strict=True)]
        else:
            targets = twins.vtrace_targets(rewards, values, ratios, gamma, lam)
            credit = [
                min(1.0, m) * a
                for m, a in zip(ratios, twins.vtrace_advantages(rewards, values, targets, gamma), strict=True)
            ]
        advantages += credit
        losses += [twins.value_loss(v, v, r, 0.2)[0] for v, r in zip(values, targets, strict=True)]
    expected = -np.mean(advantages) + 0.3 * np.mean(losses)
    assert trainer.evaluate(sequences) == pytest.approx(expected, abs=1e-5)
    assert trainer.step(sequences, 0.0).critic["value/loss"] == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("packing", [(0, 20), (32, 64), (1000, 10**6)])
@pytest.mark.parametrize("detach", [True, False])
def test_gradients_do_not_depend_on_the_split(policy, sequences, packing, detach):
    settings = CriticSettings(detach=detach)
    whole = make_trainer(policy, settings, packing=(0, 10**6), noise=0.3)
    whole_loss, (policys, heads) = whole.backward(sequences), gradients(whole)
    split = make_trainer(policy, settings, packing=packing, noise=0.3)
    assert split.backward(sequences) == pytest.approx(whole_loss, abs=1e-6)
    for ours, expected in zip(gradients(split), (policys, heads), strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_detached_the_policys_gradient_is_that_of_the_objective_alone(policy, sequences):
    found = []
    for coefficient in (1e-9, 10.0):
        trainer = make_trainer(policy, CriticSettings(coefficient=coefficient), noise=0.3)
        trainer.backward(sequences)
        found.append(gradients(trainer))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    shared = make_trainer(policy, CriticSettings(coefficient=10.0, detach=False), noise=0.3)
    shared.backward(sequences)
    assert np.abs(gradients(shared)[0] - found[0][0]).max() > 1e-2


def test_the_heads_gradient_does_not_shorten_the_policys_step(policy, sequences):
    """It is clipped by itself: both begin with the same weights and end with the same policy."""
    after = []
    start = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    for coefficient in (1e-6, 1e4):
        policy.model.load_state_dict(start, strict=False)
        trainer = make_trainer(policy, CriticSettings(coefficient=coefficient), noise=0.3)
        trainer.step(sequences, 1e-3)
        after.append(torch.cat([p.detach().flatten() for p in policy.model.parameters()]).clone())
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], torch.cat([p.flatten() for p in start.values()]))


def test_the_head_has_its_own_rate_and_lr_0_leaves_every_bit(policy, sequences):
    trainer = make_trainer(policy, CriticSettings(lr=1e-2))
    head = trainer._critic.head
    assert not trainer.step(sequences, 0.0).applied
    assert not any(p.any() for p in head.parameters())
    before = policy.model.lm_head.weight.detach().clone()
    trainer.step(sequences, 1e-7)
    assert (policy.model.lm_head.weight - before).abs().max() < 2e-7
    assert head.weight.detach().abs().max().item() == pytest.approx(1e-2, rel=1e-2)


def test_a_gradient_of_the_head_that_is_not_finite_takes_no_step_of_either(policy, sequences):
    trainer = make_trainer(policy, CriticSettings(), noise=0.3)
    before = [p.detach().clone() for p in (*policy.model.parameters(), *trainer._critic.head.parameters())]
    trainer.backward(sequences)
    trainer._critic.head.weight.grad[0, 0] = float("inf")
    norm, applied = trainer.optimizer.step(1e-3)
    assert np.isfinite(norm)
    assert not applied
    after = [*policy.model.parameters(), *trainer._critic.head.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_several_updates_share_the_values_of_before_the_batch(policy, sequences):
    """So a head that is quick is held within value_clip of them."""
    settings = CriticSettings(lr=0.05, value_clip=0.1)
    trainer = make_trainer(policy, settings, num_minibatches=2, num_epochs=6)
    report = trainer.step(sequences, 1e-6)
    assert report.num_updates == 12
    assert report.critic["value/mean"] == 0.0
    assert report.critic["value/clipped_fraction"] > 0.1
    free = make_trainer(policy, CriticSettings(lr=0.05, value_clip=None), num_minibatches=2, num_epochs=6)
    assert free.step(sequences, 1e-6).critic["value/clipped_fraction"] == 0.0


def test_a_constant_reward_is_learned(policy, make_sequence):
    batch = [rewarded(make_sequence(i), 0.7) for i in range(8)]
    trainer = make_trainer(policy, CriticSettings(lr=1e-2))
    reports = [trainer.step(batch, 1e-9).critic for _ in range(250)]
    assert reports[0]["value/mean"] == 0.0
    assert reports[-1]["value/mean"] == pytest.approx(0.7, abs=0.02)
    assert reports[-1]["value/loss"] < 1e-3
    assert "value/explained_variance" not in reports[-1]


@pytest.mark.parametrize("mlp_width", [0, 16])
def test_a_reward_that_depends_on_the_prompt_is_learned(policy, make_sequence, mlp_width):
    """The prompt's first token says it; other prompts and completions than those that it was learned from."""

    def batch(seed: int) -> list[TrainSequence]:
        out = []
        for i in range(16):
            sequence = make_sequence(100 * seed + i)
            ids = sequence.token_ids.copy()
            ids[0] = (40, 50)[i % 2]
            out.append(replace(sequence, token_ids=ids, reward=float(i % 2)))
        return out

    trainer = make_trainer(policy, CriticSettings(lr=1e-2, mlp_width=mlp_width))
    explained = [trainer.step(batch(seed), 1e-9).critic["value/explained_variance"] for seed in range(1, 121)]
    assert abs(explained[0]) < 1e-6
    assert np.mean(explained[-10:]) > 0.5
    assert np.mean(explained[-10:]) > np.mean(explained[20:30])


def test_a_penalty_in_the_reward_enters_the_returns(policy, other_policy, sequences):
    trainer = make_trainer(policy, CriticSettings(whiten=False))
    plain = trainer._prepare(sequences)
    trainer.penalise(K1(coefficient=0.5), other_policy)
    charged = trainer._prepare(sequences)
    ours, theirs = (make_trainer(p, CriticSettings()).logprobs(sequences) for p in (policy, other_policy))
    for before, after, pi, ref in zip(plain.advantages, charged.advantages, ours, theirs, strict=True):
        penalties = 0.5 * (pi.astype(np.float64) - ref)
        np.testing.assert_allclose(before - after, np.cumsum(penalties[::-1])[::-1], atol=1e-5)
    assert charged.penalty == pytest.approx(
        sum(0.5 * (p - r).sum() for p, r in zip(ours, theirs, strict=True)), rel=1e-4
    )


def test_vtraces_ratio_is_left_to_what_weighs_by_it_already(policy, sequences):
    settings = CriticSettings(estimator="vtrace", whiten=False)
    alone = make_trainer(policy, settings)._prepare(sequences).advantages
    ratios = [
        np.exp(old.astype(np.float64) - s.logprobs[s.loss_mask])
        for s, old in zip(sequences, make_trainer(policy, settings).logprobs(sequences), strict=True)
    ]
    others = [{"objective": IsReinforce()}, {"corrections": {"tis": Tis(cap=1.0)}}]
    for given in others:
        beside = make_trainer(policy, settings, **given)._prepare(sequences).advantages
        for with_rho, without, m in zip(alone, beside, ratios, strict=True):
            np.testing.assert_allclose(with_rho, without * np.minimum(1.0, m), atol=1e-5)


def test_the_step_reports_the_critic(policy, sequences):
    figures = step_figures(make_trainer(policy, CriticSettings()).step(sequences, 1e-4))
    for name in ("value/loss", "value/explained_variance", "value/clipped_fraction", "advantage/mean", "advantage/std"):
        assert np.isfinite(figures[name]), name
