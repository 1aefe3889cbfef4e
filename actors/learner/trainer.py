"""What a batch does to the weights: pack, forward, objective, backward, clip, step. No actor, no I/O.

    loss = − sum over sequences s of weight_s · sum over trained tokens t of (correction_t · J_t − penalty_t)
           + the same sum of coefficient · value loss_t, where there is a critic

The weights come from all sequences of an update (see `aggregation`), so gradients do not depend on the split into
micro-batches. One batch is one step, whose updates (epochs · mini-batches, one by default) share pi_old, the policy as
it was when the step began: a forward pass of its own where there are several, else the very one that is trained.
Called in the learner's worker thread by the stages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch

from headrace.actors.learner.aggregation.protocol import Aggregation
from headrace.actors.learner.corrections.protocol import Correction
from headrace.actors.learner.credit import returns_to_go, whiten
from headrace.actors.learner.figures.ess import token_ess
from headrace.actors.learner.kl.protocol import KlPenalty
from headrace.actors.learner.objectives.protocol import Objective, TrainedTokens
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import MicroBatch, PackingSettings
from headrace.actors.learner.passes import by_sequence, micro_batches, sequence_logprobs, temperatures
from headrace.actors.learner.policy import Interrupted, Policy, TokenLogprobs
from headrace.actors.learner.ranks.protocol import ALONE, Ranks
from headrace.actors.learner.ranks.share import Share
from headrace.actors.learner.sequence import TrainSequence
from headrace.actors.learner.value_head import Credit, Critic

RL = "rl"
"""the trainer of that stage; others have their stage's name"""
NO_CORRECTIONS: Mapping[str, Correction] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """What one step saw. The arrays hold the N trained tokens of the batch, in one order.

    loss:          over the first time that each sequence was trained, before each update; the mean over mini-batches
    grad_norm:     before clipping; of several updates the largest
    lr, lr_scale:  as applied, and what effective sample sizes made of it (1 without lr_ess_scaling); means over updates
    penalty:       mean KL penalty of a token, coefficient included; 0 without one
    applied:       whether every update moved the weights (not at lr 0, nor on a gradient that is not finite)
    num_updates:   optimizer updates; fewer than asked for where the learner was stopped meanwhile
    num_trained:   tokens of all updates, of which num_clipped, num_masked
    corrections:   by name, mean over tokens of what stands before the objective, and the fraction of tokens left out
    critic:        what a critic reports of itself, by name
    logprobs_N:    float32, log pi_old; behaviour_N: float32, log mu; lags_N: int64; sequence_N: int64
    """

    loss: float
    grad_norm: float
    lr: float
    applied: bool
    num_updates: int
    num_micro_batches: int
    num_positions: int
    num_trained: int
    num_clipped: int
    num_masked: int
    penalty: float
    logprobs_N: np.ndarray
    behaviour_N: np.ndarray
    lags_N: np.ndarray
    sequence_N: np.ndarray
    corrections: dict[str, tuple[float, float]] = field(default_factory=dict)
    critic: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """Of each sequence of a batch, by trained token: A, and log pi_old where a pass of its own computed it. `penalty`:
    what was taken off the rewards, summed over all tokens. `credit`: of the critic."""

    advantages: list[np.ndarray]
    proximal: list[np.ndarray] | None
    penalty: float = 0.0
    credit: Credit | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _ValueTerms:
    """loss: aggregated, without the coefficient."""

    loss: torch.Tensor
    clipped_N: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _LossTerms:
    loss: torch.Tensor
    clipped_N: torch.Tensor
    masked_N: torch.Tensor
    penalty_N: torch.Tensor
    logprobs_N: torch.Tensor
    factors: dict[str, torch.Tensor]
    value: _ValueTerms | None = None


@dataclass
class _Sums:
    loss: float = 0.0
    num_micro_batches: int = 0
    num_positions: int = 0
    num_trained: int = 0
    num_clipped: int = 0
    num_masked: int = 0
    penalty: float = 0.0
    value_loss: float = 0.0
    num_value_clipped: int = 0
    factors: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    logprobs: dict[int, np.ndarray] = field(default_factory=dict)
    """sequence → log pi of its trained tokens when it was first seen"""

    def add(
        self,
        micro: MicroBatch,
        terms: _LossTerms,
        sequences: Sequence[TrainSequence],
        prepared: _Prepared,
        *,
        seen: Collection[int],
    ) -> np.ndarray:
        """`seen`: sequences that were trained before, in another epoch. → float32[N], log(pi / mu) of its tokens."""
        logprobs_N = terms.logprobs_N.cpu().numpy()
        if micro.members[0] not in seen:
            self.loss += float(terms.loss.item())
            self.value_loss += 0.0 if terms.value is None else float(terms.value.loss.item())
        for number, member in enumerate(micro.members):
            old = prepared.proximal[member] if prepared.proximal else logprobs_N[micro.sequence_N == number]
            self.logprobs[member] = old
        self.num_micro_batches += 1
        self.num_positions += micro.input_ids_RL.size
        self.num_trained += len(logprobs_N)
        self.num_clipped += int(terms.clipped_N.sum())
        self.num_masked += int(terms.masked_N.sum())
        self.penalty += float(terms.penalty_N.sum())
        self.num_value_clipped += 0 if terms.value is None else int(terms.value.clipped_N.sum())
        for name, factor_N in terms.factors.items():
            self.factors[name] = self.factors.get(name, 0.0) + float(factor_N.sum())
            self.left_out[name] = self.left_out.get(name, 0) + int((factor_N == 0).sum())
        behaviour = [sequences[i].logprobs[sequences[i].loss_mask] for i in micro.members]
        log_ratios_N: np.ndarray = logprobs_N - np.concatenate(behaviour)
        return log_ratios_N

    def include(self, other: _Sums) -> None:
        """What another rank, or another update, adds."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in other.factors:
            self.factors[name] = self.factors.get(name, 0.0) + other.factors[name]
            self.left_out[name] = self.left_out.get(name, 0) + other.left_out[name]
        self.logprobs = other.logprobs | self.logprobs


_NUMBERS = tuple(f.name for f in fields(_Sums) if f.name not in ("factors", "left_out", "logprobs"))


class Trainer:
    """Holds what one stage trains with; stages share the policy. A batch is gone through `num_epochs` times, in
    `num_minibatches` updates each time. critic: gives the advantages, in place of those that the sequences hold, and is
    trained beside the policy; its head is in the optimizer.
    lr_ess_scaling: an update's learning rate is multiplied by √(ESS / N), of w = pi / mu over its tokens (VCPO, arXiv
    2602.17616): what a batch of ESS samples would take with AdamW.
    ranks: which train together; each calls the same methods of a trainer of the same `name`. What a step reports is of
    them all."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        objective: Objective,
        aggregation: Aggregation,
        packing: PackingSettings,
        corrections: Mapping[str, Correction] = NO_CORRECTIONS,
        num_minibatches: int = 1,
        num_epochs: int = 1,
        critic: Critic | None = None,
        lr_ess_scaling: bool = False,
        ranks: Ranks = ALONE,
        name: str = RL,
    ) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self._objective = objective
        self._aggregation = aggregation
        self._packing = packing
        self._corrections = dict(corrections)
        self._num_minibatches = num_minibatches
        self._num_epochs = num_epochs
        self._critic = critic
        self._lr_ess_scaling = lr_ess_scaling
        self._ranks = ranks
        self._name = name
        self._share = None if ranks.size == 1 else Share(ranks, policy.hidden_size)
        self._kl: tuple[KlPenalty, TokenLogprobs] | None = None

    def penalise(self, kl: KlPenalty, reference: TokenLogprobs) -> None:
        """From now on the policy is held near `reference`, which nothing trains: by the loss, or by the reward."""
        self._kl = (kl, reference)

    def step(self, sequences: Sequence[TrainSequence], lr: float) -> StepReport:
        """Raises ValueError where `sequences` is empty: a mean over nothing does not exist; TimeoutError where somebody
        reads the weights for ever; Interrupted where the learner stops before the weights have changed."""
        if not sequences:
            raise ValueError("nothing to train on; the caller must leave this step out")
        self._ranks.announce(self._name, "step", sequences, lr)
        started = time.perf_counter()
        prepared = self._prepare(sequences)
        seconds = {"prepare": time.perf_counter() - started, "forward_backward": 0.0, "held": 0.0, "optimizer": 0.0}
        sums, norms, scales, all_applied = _Sums(), [], [], True
        try:
            for _ in range(self._num_epochs):
                for part in minibatches(len(sequences), self._num_minibatches):
                    norm, scale, applied = self._update(sequences, part, prepared, lr, sums, seconds)
                    norms.append(norm)
                    scales.append(scale)
                    all_applied &= applied
        except Interrupted:
            if not norms:
                raise
            self.optimizer.clear()  # what was applied is this step
        return self._report(
            sequences, prepared, sums, seconds, lr=lr, scale=float(np.mean(scales)), norms=norms, applied=all_applied
        )

    def _update(
        self,
        sequences: Sequence[TrainSequence],
        part: Sequence[int],
        prepared: _Prepared,
        lr: float,
        sums: _Sums,
        seconds: dict[str, float],
    ) -> tuple[float, float, bool]:
        """→ gradient norm, what the learning rate was multiplied by, whether the weights moved."""
        started = time.perf_counter()
        log_ratios_N = self._accumulate(sequences, part, prepared, sums)
        scale = math.sqrt(token_ess(log_ratios_N)) if self._lr_ess_scaling else 1.0
        computed = time.perf_counter()
        if self._ranks.any(not self.policy.holds.wait_released()):
            raise Interrupted
        free = time.perf_counter()
        norm, applied = self.optimizer.step(lr * scale)
        seconds["forward_backward"] += computed - started
        seconds["held"] += free - computed
        seconds["optimizer"] += time.perf_counter() - free
        return norm, scale, applied

    def _report(
        self,
        sequences: Sequence[TrainSequence],
        prepared: _Prepared,
        sums: _Sums,
        seconds: dict[str, float],
        *,
        lr: float,
        scale: float,
        norms: list[float],
        applied: bool,
    ) -> StepReport:
        seen = sorted(sums.logprobs)
        logprobs = [sums.logprobs[i] for i in seen]
        num_tokens = sum(map(len, logprobs))
        penalty = prepared.penalty / num_tokens if prepared.penalty else sums.penalty / sums.num_trained
        return StepReport(
            loss=sums.loss / min(len(norms), self._num_minibatches),
            grad_norm=max(norms),
            lr=lr * scale,
            lr_scale=scale,
            applied=applied,
            num_updates=len(norms),
            num_micro_batches=sums.num_micro_batches,
            num_positions=sums.num_positions,
            num_trained=sums.num_trained,
            num_clipped=sums.num_clipped,
            num_masked=sums.num_masked,
            penalty=penalty,
            logprobs_N=np.concatenate(logprobs),
            behaviour_N=np.concatenate([sequences[i].logprobs[sequences[i].loss_mask] for i in seen]),
            lags_N=np.concatenate([sequences[i].trained_lags for i in seen]),
            sequence_N=np.repeat(seen, [len(part) for part in logprobs]),
            corrections={
                name: (sums.factors[name] / sums.num_trained, sums.left_out[name] / sums.num_trained)
                for name in sums.factors
            },
            critic=self._critic_figures(prepared, sums, num_parts=min(len(norms), self._num_minibatches)),
            seconds=seconds,
        )

    def _critic_figures(self, prepared: _Prepared, sums: _Sums, *, num_parts: int) -> dict[str, float]:
        if prepared.credit is None:
            return {}
        return prepared.credit.figures | {
            "value/loss": sums.value_loss / num_parts,
            "value/clipped_fraction": sums.num_value_clipped / sums.num_trained,
        }

    def backward(self, sequences: Sequence[TrainSequence]) -> float:
        """Accumulate the gradients of the loss over all of them without stepping; returns the loss."""
        self._ranks.announce(self._name, "backward", sequences)
        sums = _Sums()
        self._accumulate(sequences, range(len(sequences)), self._prepare(sequences), sums)
        return sums.loss

    @torch.no_grad()
    def evaluate(self, sequences: Sequence[TrainSequence]) -> float:
        """The loss, without gradients."""
        self._ranks.announce(self._name, "evaluate", sequences)
        prepared = self._prepare(sequences)
        weights_S = self._weights(sequences)
        losses = [
            (0.0 if micro.padding else 1.0) * float(self._loss(micro, sequences, prepared, weights_S).loss.item())
            for micro in micro_batches(sequences, self._packing, share=self._share)
        ]
        return sum(self._ranks.gather(sum(losses)))

    def logprobs(self, sequences: Sequence[TrainSequence]) -> list[np.ndarray]:
        """See sequence_logprobs."""
        self._ranks.announce(self._name, "logprobs", sequences)
        return self._logprobs(self.policy, sequences)

    def _logprobs(self, policy: TokenLogprobs, sequences: Sequence[TrainSequence]) -> list[np.ndarray]:
        return sequence_logprobs(policy, sequences, self._packing, self._share)

    def _prepare(self, sequences: Sequence[TrainSequence]) -> _Prepared:
        """What must be known of the whole batch before its first update."""
        in_reward = self._kl is not None and self._kl[0].in_reward
        several = self._num_epochs * min(self._num_minibatches, len(sequences)) > 1
        if self._critic is None:
            proximal = self._logprobs(self.policy, sequences) if several or in_reward else None
        else:
            proximal, values = self._observe(self._critic, sequences, several or in_reward or self._critic.needs_ratios)
        penalties = None
        if self._kl is not None and in_reward and proximal is not None:
            kl, reference = self._kl
            below = self._logprobs(reference, sequences)
            penalties = [
                kl(torch.from_numpy(p), torch.from_numpy(b)).numpy() for p, b in zip(proximal, below, strict=True)
            ]
        penalty = 0.0 if penalties is None else float(sum(p.sum() for p in penalties))
        if self._critic is not None:
            credit = self._critic.credit(
                [s.reward for s in sequences],
                values,
                penalties=penalties,
                log_ratios=_log_ratios(proximal, sequences),
                weighs=self._weighs_nothing,
            )
            return _Prepared(credit.advantages, proximal, penalty, credit)
        advantages = [np.full(s.num_trained, s.advantage, dtype=np.float32) for s in sequences]
        if penalties is not None:
            advantages = [a - returns_to_go(p) for a, p in zip(advantages, penalties, strict=True)]
        if self._kl is not None and in_reward and self._kl[0].whiten:
            advantages = whiten(advantages)
        return _Prepared(advantages, proximal, penalty)

    @property
    def _weighs_nothing(self) -> bool:
        """Whether neither the objective nor a correction weighs tokens by how far their policy was from pi_old."""
        weights = any(correction.kind == "weight" for correction in self._corrections.values())
        return self._objective.takes_weights and not weights

    @torch.no_grad()
    def _observe(
        self, critic: Critic, sequences: Sequence[TrainSequence], with_logprobs: bool
    ) -> tuple[list[np.ndarray] | None, list[np.ndarray]]:
        """log pi and V of each sequence's trained tokens, float32, in one pass."""

        def compute(micro: MicroBatch) -> list[torch.Tensor]:
            hidden_NH = self.policy.predictors(micro)
            values_N = critic.values(hidden_NH)
            if not with_logprobs:
                return [values_N]
            return [values_N, self.policy.logprobs_of(hidden_NH, micro, temperatures(sequences, micro))]

        values, *logprobs = by_sequence(sequences, self._packing, compute, self._share)
        return (logprobs[0] if logprobs else None), values

    def _accumulate(
        self, sequences: Sequence[TrainSequence], part: Sequence[int], prepared: _Prepared, sums: _Sums
    ) -> np.ndarray:
        """→ float32[N], log(pi / mu) of the tokens of `part`."""
        weights_S = np.zeros(len(sequences))
        weights_S[list(part)] = self._weights([sequences[i] for i in part])
        own = _Sums()
        log_ratios: list[np.ndarray] = []
        for micro in micro_batches(sequences, self._packing, part, self._share):
            terms = self._loss(micro, sequences, prepared, np.zeros_like(weights_S) if micro.padding else weights_S)
            terms.loss.backward()  # type: ignore[no-untyped-call]
            if not micro.padding:
                log_ratios.append(own.add(micro, terms, sequences, prepared, seen=sums.logprobs.keys()))
        found = [np.concatenate([np.zeros(0, dtype=np.float32), *log_ratios])]
        for of_rank, log_ratios_N in self._ranks.gather((own, found[0])):
            sums.include(of_rank)
            found.append(log_ratios_N)
        return np.concatenate(found[1:])

    def _loss(
        self, micro: MicroBatch, sequences: Sequence[TrainSequence], prepared: _Prepared, weights_S: np.ndarray
    ) -> _LossTerms:
        temperatures_N = temperatures(sequences, micro)
        hidden_NH, logprobs_N = self.policy.compute(micro, temperatures_N)
        members = [sequences[i] for i in micro.members]
        old_N = logprobs_N.detach()
        if prepared.proximal is not None:
            old_N = self._tensor(np.concatenate([prepared.proximal[i] for i in micro.members]))
        tokens = TrainedTokens(
            logprobs_N=logprobs_N,
            behaviour_logprobs_N=self._tensor(np.concatenate([s.logprobs[s.loss_mask] for s in members])),
            proximal_logprobs_N=old_N,
            advantages_N=self._tensor(np.concatenate([prepared.advantages[i] for i in micro.members])),
            lags_N=torch.from_numpy(np.concatenate([s.trained_lags for s in members])).to(self.policy.device),
            sequence_N=torch.from_numpy(micro.sequence_N).to(self.policy.device),
        )
        terms = self._objective(tokens)
        factors = {name: correction(tokens) for name, correction in self._corrections.items()}
        objective_N, masked_N = terms.objective_N, terms.masked_N
        for factor_N in factors.values():
            objective_N = objective_N * factor_N
            masked_N = masked_N | (factor_N == 0)
        weight_N = self._tensor(weights_S[list(micro.members)][micro.sequence_N])
        penalty_N = self._penalty(micro, temperatures_N, logprobs_N)
        loss = -((objective_N - penalty_N) * weight_N).sum()
        value = None
        if self._critic is not None and prepared.credit is not None:
            value = self._value_terms(self._critic, prepared.credit, hidden_NH, micro, weight_N)
            loss = loss + self._critic.settings.coefficient * value.loss
        return _LossTerms(loss, terms.clipped_N, masked_N, penalty_N.detach(), logprobs_N.detach(), factors, value)

    def _value_terms(
        self, critic: Critic, credit: Credit, hidden_NH: torch.Tensor, micro: MicroBatch, weight_N: torch.Tensor
    ) -> _ValueTerms:
        """Tokens that corrections leave out are in it: how good their states were was seen all the same."""
        old_N, targets_N = (
            self._tensor(np.concatenate([parts[i] for i in micro.members])) for parts in (credit.values, credit.targets)
        )
        loss_N, clipped_N = critic.loss(critic.values(hidden_NH), old_N, targets_N)
        return _ValueTerms((loss_N * weight_N).sum(), clipped_N)

    def _penalty(self, micro: MicroBatch, temperatures_N: torch.Tensor, logprobs_N: torch.Tensor) -> torch.Tensor:
        if self._kl is None or self._kl[0].in_reward:
            return torch.zeros_like(logprobs_N)
        kl, reference = self._kl
        with torch.no_grad():
            reference_N = reference.token_logprobs(micro, temperatures_N)
        return kl(logprobs_N, reference_N)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.policy.device)

    def _weights(self, sequences: Sequence[TrainSequence]) -> np.ndarray:
        num_tokens_S = np.array([s.num_trained for s in sequences], dtype=np.int64)
        return self._aggregation(num_tokens_S, np.array([s.group for s in sequences], dtype=np.int64))


def minibatches(num_sequences: int, num_parts: int) -> list[range]:
    """Sequences in their order, in `num_parts` parts of sizes that differ by one at most; none is empty."""
    num_parts = min(num_parts, num_sequences)
    edges = [round(i * num_sequences / num_parts) for i in range(num_parts + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _log_ratios(proximal: list[np.ndarray] | None, sequences: Sequence[TrainSequence]) -> list[np.ndarray] | None:
    """log(pi_old / mu) of each sequence's trained tokens."""
    if proximal is None:
        return None
    return [old - s.logprobs[s.loss_mask] for old, s in zip(proximal, sequences, strict=True)]
