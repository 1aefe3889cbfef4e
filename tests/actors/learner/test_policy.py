"""Temperature, the float32 head, and models that it would be wrong for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headrace.actors.learner.packing import pack
from headrace.actors.learner.policy import Interrupted, Policy
from headrace.actors.learner.sequence import TrainSequence


class FixedLogits(torch.nn.Module):
    """Looks like a transformers model whose hidden state is always [2, 1, 0] and whose head is the identity."""

    base_model_prefix = "layers"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layers = self._hidden
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight.data = torch.eye(3)
        self.scale = scale

    def get_output_embeddings(self):
        return self.head

    def _hidden(self, input_ids, **kwargs):
        from types import SimpleNamespace

        hidden = torch.tensor([2.0, 1.0, 0.0]).expand(*input_ids.shape, 3)
        return SimpleNamespace(last_hidden_state=hidden)

    def forward(self, input_ids, **kwargs):
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.head(self._hidden(input_ids).last_hidden_state) * self.scale)


def test_logits_are_divided_by_the_temperature_before_the_log_softmax():
    """cases D77: logits [2, 1, 0] at T = 0.6: −0.2026; undivided −0.4076, log-probs divided −0.6793."""
    policy = Policy(FixedLogits())
    sequence = TrainSequence(
        token_ids=np.array([1, 0], dtype=np.int32),
        loss_mask=np.array([False, True]),
        logprobs=np.zeros(2, dtype=np.float32),
        versions=np.zeros(2, dtype=np.int32),
        advantage=1.0,
    )
    micro = pack([sequence], [(0,)])
    at_06 = policy.token_logprobs(micro, torch.tensor([0.6])).item()
    at_1 = policy.token_logprobs(micro, torch.tensor([1.0])).item()
    assert at_06 == pytest.approx(-0.2026, abs=1e-4)
    assert at_1 == pytest.approx(-0.4076, abs=1e-4)


def test_a_model_that_scales_its_logits_is_refused():
    with pytest.raises(ValueError, match="changes its logits after the output head"):
        Policy(FixedLogits(scale=0.5))


def test_autocast_keeps_the_head_and_the_logprobs_in_float32(model_folder, make_sequence):
    exact, rough = Policy.load(model_folder), Policy.load(model_folder, autocast="bfloat16")
    sequence = make_sequence(0, 12)
    micro = pack([sequence], [(0,)])
    ones_N = torch.ones(sequence.num_trained)
    a, b = exact.token_logprobs(micro, ones_N), rough.token_logprobs(micro, ones_N)
    assert b.dtype == torch.float32
    assert next(rough.model.parameters()).dtype == torch.float32
    assert 0 < (a - b).abs().max() < 0.05


def test_an_unknown_autocast_is_named(model_folder):
    with pytest.raises(ValueError, match="autocast"):
        Policy.load(model_folder, autocast="fp8")


def test_an_interrupted_policy_gives_up_at_the_next_micro_batch(model_folder, make_sequence):
    """A stop must not wait for the minutes that a large step takes."""
    policy = Policy.load(model_folder)
    sequence = make_sequence(0, 12)
    micro = pack([sequence], [(0,)])
    ones_N = torch.ones(sequence.num_trained)
    policy.token_logprobs(micro, ones_N)
    policy.interrupt()
    with pytest.raises(Interrupted):
        policy.token_logprobs(micro, ones_N)
