"""One optimizer step over a set of sequences: pack, forward, objective, backward, clip, step. No actor, no I/O.

    loss = − sum over sequences s of weight_s · sum over trained tokens t of (J_t − penalty_t)

The weights come from the whole set (see `aggregation`), so gradients do not depend on the split into micro-batches.
Called in the learner's worker thread by the stages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from headrace.actors.learner.aggregation.protocol import Aggregation
from headrace.actors.learner.kl.protocol import KlPenalty
from headrace.actors.learner.objectives.protocol import Objective, TrainedTokens
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import MicroBatch, PackingSettings, input_length, pack, plan_micro_batches
from headrace.actors.learner.policy import Interrupted, Policy, TokenLogprobs
from headrace.actors.learner.sequence import TrainSequence


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """What one step saw. The arrays hold the N trained tokens of all micro-batches, in one order.

    loss:        the loss before the step
    penalty:     mean KL penalty of a token, coefficient included; 0 without one
    applied:     whether the optimizer moved (not at lr 0, nor on a gradient that is not finite)
    logprobs_N:  float32, log pi before the step; behaviour_N: float32, log mu; versions_N: int32; sequence_N: int64
    """

    loss: float
    grad_norm: float
    lr: float
    applied: bool
    num_micro_batches: int
    num_positions: int
    num_clipped: int
    num_masked: int
    penalty: float
    logprobs_N: np.ndarray
    behaviour_N: np.ndarray
    versions_N: np.ndarray
    sequence_N: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class _Sums:
    loss: float = 0.0
    num_positions: int = 0
    num_clipped: int = 0
    num_masked: int = 0
    penalty: float = 0.0
    logprobs: list[np.ndarray] = field(default_factory=list)
    members: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _LossTerms:
    loss: torch.Tensor
    clipped_N: torch.Tensor
    masked_N: torch.Tensor
    penalty_N: torch.Tensor
    logprobs_N: torch.Tensor


class Trainer:
    """Holds what one stage trains with; stages share the policy."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        objective: Objective,
        aggregation: Aggregation,
        packing: PackingSettings,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self._objective = objective
        self._aggregation = aggregation
        self._packing = packing
        self._kl: tuple[KlPenalty, TokenLogprobs] | None = None

    def penalise(self, kl: KlPenalty, reference: TokenLogprobs) -> None:
        """From now on the loss holds the policy near `reference`, which nothing trains."""
        self._kl = (kl, reference)

    def step(self, sequences: Sequence[TrainSequence], lr: float) -> StepReport:
        """Raises ValueError where `sequences` is empty: a mean over nothing does not exist; TimeoutError where somebody
        reads the weights for ever."""
        if not sequences:
            raise ValueError("nothing to train on; the caller must leave this step out")
        started = time.perf_counter()
        sums = self._accumulate(sequences)
        computed = time.perf_counter()
        if not self.policy.holds.wait_released():
            raise Interrupted
        free = time.perf_counter()
        grad_norm, applied = self.optimizer.step(lr)
        stepped = time.perf_counter()
        sequence_N = np.concatenate(sums.members)
        return StepReport(
            loss=sums.loss,
            grad_norm=grad_norm,
            lr=lr,
            applied=applied,
            num_micro_batches=len(sums.members),
            num_positions=sums.num_positions,
            num_clipped=sums.num_clipped,
            num_masked=sums.num_masked,
            penalty=sums.penalty / len(sequence_N),
            logprobs_N=np.concatenate(sums.logprobs),
            behaviour_N=_in_order(sequences, sums.members, "logprobs"),
            versions_N=_in_order(sequences, sums.members, "versions"),
            sequence_N=sequence_N,
            seconds={
                "forward_backward": computed - started,
                "held": free - computed,
                "optimizer": stepped - free,
            },
        )

    def backward(self, sequences: Sequence[TrainSequence]) -> float:
        """Accumulate the gradients of the loss without stepping; returns the loss."""
        return self._accumulate(sequences).loss

    @torch.no_grad()
    def evaluate(self, sequences: Sequence[TrainSequence]) -> float:
        """The loss, without gradients: − J."""
        weights_S = self._weights(sequences)
        return sum(
            float(self._loss(micro, sequences, weights_S).loss.item())
            for micro in _micro_batches(sequences, self._packing)
        )

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[np.ndarray]:
        """See sequence_logprobs."""
        return sequence_logprobs(self.policy, sequences, self._packing)

    def _accumulate(self, sequences: Sequence[TrainSequence]) -> _Sums:
        weights_S = self._weights(sequences)
        sums = _Sums()
        for micro in _micro_batches(sequences, self._packing):
            terms = self._loss(micro, sequences, weights_S)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            sums.loss += float(terms.loss.item())
            sums.num_positions += micro.input_ids_RL.size
            sums.num_clipped += int(terms.clipped_N.sum())
            sums.num_masked += int(terms.masked_N.sum())
            sums.penalty += float(terms.penalty_N.sum())
            sums.logprobs.append(terms.logprobs_N.cpu().numpy())
            sums.members.append(np.asarray(micro.members, dtype=np.int64)[micro.sequence_N])
        return sums

    def _loss(self, micro: MicroBatch, sequences: Sequence[TrainSequence], weights_S: np.ndarray) -> _LossTerms:
        temperatures_N = _temperatures(sequences, micro)
        logprobs_N = self.policy.token_logprobs(micro, temperatures_N)
        members = [sequences[i] for i in micro.members]
        advantages_S = np.array([s.advantage for s in members], dtype=np.float32)
        terms = self._objective(
            TrainedTokens(
                logprobs_N=logprobs_N,
                behaviour_logprobs_N=self._tensor(np.concatenate([s.logprobs[s.loss_mask] for s in members])),
                advantages_N=self._tensor(advantages_S[micro.sequence_N]),
                sequence_N=torch.from_numpy(micro.sequence_N).to(self.policy.device),
            )
        )
        weight_N = self._tensor(weights_S[list(micro.members)][micro.sequence_N])
        penalty_N = self._penalty(micro, temperatures_N, logprobs_N)
        loss = -((terms.objective_N - penalty_N) * weight_N).sum()
        return _LossTerms(loss, terms.clipped_N, terms.masked_N, penalty_N.detach(), logprobs_N.detach())

    def _penalty(self, micro: MicroBatch, temperatures_N: torch.Tensor, logprobs_N: torch.Tensor) -> torch.Tensor:
        if self._kl is None:
            return torch.zeros_like(logprobs_N)
        kl, reference = self._kl
        with torch.no_grad():
            reference_N = reference.token_logprobs(micro, temperatures_N)
        return kl(logprobs_N, reference_N)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.policy.device)

    def _weights(self, sequences: Sequence[TrainSequence]) -> np.ndarray:
        return self._aggregation(np.array([s.num_trained for s in sequences], dtype=np.int64))


@torch.no_grad()
def sequence_logprobs(
    policy: TokenLogprobs, sequences: Sequence[TrainSequence], packing: PackingSettings
) -> list[np.ndarray]:
    """log pi of each sequence's trained tokens, float32, without gradients."""
    out: list[np.ndarray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    for micro in _micro_batches(sequences, packing):
        logprobs_N = policy.token_logprobs(micro, _temperatures(sequences, micro)).cpu().numpy()
        for number, member in enumerate(micro.members):
            out[member] = logprobs_N[micro.sequence_N == number]
    return out


def _micro_batches(sequences: Sequence[TrainSequence], packing: PackingSettings) -> list[MicroBatch]:
    plan = plan_micro_batches(
        [input_length(s) for s in sequences],
        tokens_per_row=packing.tokens_per_row,
        tokens_per_micro_batch=packing.tokens_per_micro_batch,
    )
    return [pack(sequences, rows) for rows in plan]


def _temperatures(sequences: Sequence[TrainSequence], micro: MicroBatch) -> torch.Tensor:
    temperatures_S = torch.tensor([sequences[i].temperature for i in micro.members], dtype=torch.float32)
    return temperatures_S[torch.from_numpy(micro.sequence_N)]


def _in_order(sequences: Sequence[TrainSequence], members: list[np.ndarray], name: str) -> np.ndarray:
    """The trained entries of a per-token array, in the order in which the micro-batches held the tokens."""
    parts = [
        getattr(sequences[i], name)[sequences[i].loss_mask] for chunk in members for i in dict.fromkeys(chunk.tolist())
    ]
    return np.concatenate(parts)
