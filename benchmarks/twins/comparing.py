"""The learner's own code and the twins over the same numbers, in float64: by how much they differ.

A difference is relative where numbers are larger than 1: |a − b| / max(1, |b|).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from headrace.actors.learner.advantages import Advantage, BatchRewards
from headrace.actors.learner.aggregation import Aggregation
from headrace.actors.learner.corrections import Correction
from headrace.actors.learner.credit import gae, vtrace
from headrace.actors.learner.kl import KlPenalty
from headrace.actors.learner.objectives import Objective, ObjectiveTerms, TrainedTokens
from twins import advantages, aggregation, corrections, critic
from twins.tokens import Token, Twin, gradient


def difference(ours: Sequence[float] | np.ndarray, twin: Sequence[float] | np.ndarray) -> float:
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(twin, dtype=np.float64)
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b)), initial=0.0))


def trained_tokens(sequences: Sequence[Sequence[Token]], dtype: torch.dtype = torch.float64) -> TrainedTokens:
    """A micro-batch of these sequences. logprobs_N is a leaf that takes gradients."""
    flat = [token for sequence in sequences for token in sequence]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in flat], dtype=dtype)

    return TrainedTokens(
        logprobs_N=column("held").requires_grad_(True),
        behaviour_logprobs_N=column("mu"),
        proximal_logprobs_N=column("old"),
        advantages_N=column("advantage"),
        lags_N=torch.tensor([token.lag for token in flat], dtype=torch.int64),
        sequence_N=torch.tensor([s for s, sequence in enumerate(sequences) for _ in sequence], dtype=torch.int64),
    )


def terms_and_gradient(objective: Objective, tokens: TrainedTokens) -> tuple[ObjectiveTerms, np.ndarray]:
    """J by token, and the gradient of their sum by log pi, [N]."""
    terms = objective(tokens)
    (slopes_N,) = torch.autograd.grad(terms.objective_N.sum(), tokens.logprobs_N)
    return terms, slopes_N.numpy()


def objective_differences(
    objective: Objective, twin: Twin, sequences: Sequence[Sequence[Token]]
) -> tuple[float, float]:
    """→ of the values at each token, of the gradient by each log pi."""
    terms, slopes_N = terms_and_gradient(objective, trained_tokens(sequences))
    values = [complex(value).real for sequence in sequences for value in twin(sequence)]
    slopes = [slope for sequence in sequences for slope in gradient(twin, sequence)]
    return difference(terms.objective_N.detach().numpy(), values), difference(slopes_N, slopes)


def advantage_difference(
    rule: Advantage, twin: Callable[[advantages.Batch], list[float]], batch: advantages.Batch
) -> float:
    rewards = BatchRewards(
        rewards_S=np.array([reward for group in batch for _, reward in group]),
        group_S=np.array([number for number, group in enumerate(batch) for _ in group], dtype=np.int64),
        classes_S=tuple(name for group in batch for name, _ in group),
    )
    return difference(rule(rewards), twin(batch))


def aggregation_difference(
    rule: Aggregation, twin: Callable[[aggregation.Batch], float], batch: aggregation.Batch
) -> float:
    """Between the J that comes of the rule's weights and the twin's."""
    sequences = [sequence for group in batch for sequence in group]
    num_tokens_S = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    group_S = np.array([number for number, group in enumerate(batch) for _ in group], dtype=np.int64)
    weights_S = rule(num_tokens_S, group_S)
    ours = sum(weight * sum(sequence) for weight, sequence in zip(weights_S, sequences, strict=True))
    return difference([ours], [twin(batch)])


def correction_difference(
    correction: Correction,
    twin: Callable[[Sequence[corrections.Token]], list[float]],
    sequences: Sequence[Sequence[Token]],
) -> float:
    factors = [
        factor
        for sequence in sequences
        for factor in twin([corrections.Token(t.held, t.old, t.mu, t.advantage, t.lag) for t in sequence])
    ]
    return difference(correction(trained_tokens(sequences)).numpy(), factors)


def kl_differences(
    penalty: KlPenalty, twin: Callable[[float, float], tuple[float, float]], sequences: Sequence[Sequence[Token]]
) -> tuple[float, float]:
    """→ of the values, of the gradient by log pi; pi_old stands for pi_ref."""
    tokens = trained_tokens(sequences)
    values_N = penalty(tokens.logprobs_N, tokens.proximal_logprobs_N)
    (slopes_N,) = torch.autograd.grad(values_N.sum(), tokens.logprobs_N)
    values, slopes = zip(*(twin(t.held, t.old) for sequence in sequences for t in sequence), strict=True)
    return difference(values_N.detach().numpy(), values), difference(slopes_N.numpy(), slopes)


def credit_differences(rewards: Sequence[float], values: Sequence[float], ratios: Sequence[float]) -> dict[str, float]:
    """By estimator, at the settings 0.99 and 0.95 that leave no factor out."""
    settings = {"gamma": 0.99, "gae_lambda": 0.95}
    rewards_T, values_T, ratios_T = (np.array(numbers, dtype=np.float64) for numbers in (rewards, values, ratios))
    advantages_T, targets_T = vtrace(rewards_T, values_T, ratios_T, rho_bar=1.5, c_bar=1.2, **settings)
    targets = critic.vtrace_targets(rewards, values, ratios, 0.99, 0.95, 1.5, 1.2)
    return {
        "gae": difference(gae(rewards_T, values_T, **settings), critic.gae(rewards, values, 0.99, 0.95)),
        "vtrace targets": difference(targets_T, targets),
        "vtrace advantages": difference(advantages_T, critic.vtrace_advantages(rewards, values, targets, 0.99)),
    }


def penalty_difference(ours: Callable[[int], float], twin: Callable[[int], float], lengths: Sequence[int]) -> float:
    return difference([ours(length) for length in lengths], [twin(length) for length in lengths])
