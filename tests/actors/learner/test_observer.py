"""An observer computes with the very weights of the policy, beside its training, and disturbs nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.objectives import CrossEntropy
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.passes import sequence_logprobs
from headrace.actors.learner.policy import Interrupted, Policy
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.trainer import Trainer

PACKING = PackingSettings()


def make_trainer(policy: Policy) -> Trainer:
    optimizer = Optimizer(policy.model.parameters(), AdamSettings())
    return Trainer(policy, optimizer, objective=CrossEntropy(), aggregation=TokenMean(), packing=PACKING)


def logprobs(policy: Policy, sequences: list) -> np.ndarray:
    return np.concatenate(sequence_logprobs(policy, sequences, PACKING))


@pytest.mark.parametrize("with_adapters", [False, True])
def test_an_observer_sees_each_step_in_memory_that_is_shared(policy, make_sequence, tmp_path, with_adapters):
    if with_adapters:
        policy.adapt(LoraSettings(rank=2), base=tmp_path)
    observer, trainer = policy.observer(), make_trainer(policy)
    sequences = [make_sequence(i) for i in range(4)]
    before = logprobs(observer, sequences)
    np.testing.assert_array_equal(before, logprobs(policy, sequences))
    for _ in range(2):  # a fresh adapter's A has no gradient until B is no longer zero
        trainer.step(sequences, 1e-2)
    after = logprobs(observer, sequences)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_array_equal(after, logprobs(policy, sequences))
    assert observer.observes(policy)
    if with_adapters:
        with policy.adapters.disabled():  # the reference of a KL penalty: no business of the observer's
            np.testing.assert_array_equal(after, logprobs(observer, sequences))
            assert not np.array_equal(after, logprobs(policy, sequences))


def test_an_observer_may_compute_in_another_precision(policy, make_sequence):
    observer, sequences = policy.observer(), [make_sequence(i) for i in range(4)]
    gap = np.abs(logprobs(observer.under("bfloat16"), sequences) - logprobs(observer, sequences))
    assert 0 < gap.mean() < 0.03
    np.testing.assert_array_equal(logprobs(observer.under("none"), sequences), logprobs(policy, sequences))


def test_weights_that_were_replaced_are_observed_no_more(policy):
    observer = policy.observer()
    next(policy.model.parameters()).data = next(policy.model.parameters()).data.clone()
    assert not observer.observes(policy)
    assert policy.observer().observes(policy)


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_gradients_are_the_same_with_an_observer_inside_the_forward_pass(model_folder, make_sequence, autocast):
    """In the middle of a training forward, another thread computes: with torch's one cache of cast weights the
    gradients of what it cast would be lost."""
    sequences = [make_sequence(i) for i in range(3)]

    def gradients(disturbed: bool) -> np.ndarray:
        policy = Policy.load(model_folder, autocast=autocast)
        observer = policy.observer()

        def observe(*args) -> None:
            thread = threading.Thread(target=logprobs, args=(observer, sequences))
            thread.start()
            thread.join(60.0)

        if disturbed:
            policy.model.model.layers[0].register_forward_pre_hook(observe)
        make_trainer(policy).backward(sequences)
        return torch.cat([p.grad.flatten() for p in policy.model.parameters()]).numpy()

    np.testing.assert_allclose(gradients(True), gradients(False), atol=1e-7)


def test_a_step_changes_no_weight_that_is_held(policy, make_sequence):
    trainer, sequences = make_trainer(policy), [make_sequence(0)]
    held = policy.model.get_output_embeddings().weight
    before = held.detach().clone()
    hold, waits = policy.holds.take(), threading.Event()
    original = policy.holds.wait_released

    def wait_released() -> bool:
        waits.set()
        return original(timeout_s=60.0)

    policy.holds.wait_released = wait_released
    stepping = threading.Thread(target=trainer.step, args=(sequences, 1e-2))
    stepping.start()
    assert waits.wait(60.0)
    assert torch.equal(held, before)
    hold.release()
    stepping.join(60.0)
    assert not torch.equal(held, before)


def test_a_step_that_waits_for_a_reader_ends_with_a_stop(policy, make_sequence):
    trainer, observer = make_trainer(policy), policy.observer()
    before = policy.model.get_output_embeddings().weight.detach().clone()
    policy.holds.take()
    policy.holds.interrupt()
    with pytest.raises(Interrupted):
        trainer.step([make_sequence(0)], 1e-2)
    assert torch.equal(policy.model.get_output_embeddings().weight, before)
    policy.interrupt()
    with pytest.raises(Interrupted):  # a stop ends what observes, too
        logprobs(observer, [make_sequence(0)])
