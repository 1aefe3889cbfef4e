"""TRL's own loss over the same numbers: `GRPOTrainer._compute_loss` as it is installed, given log-probs in place of a
model's, and the gradient by them. Needs the package trl.

What it takes from its trainer stands in `_trainer`; one micro-batch is the whole batch, so that its normalisers, some
of which are those of a micro-batch, are ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from headrace.actors.learner.aggregation import Aggregation, Constant, SequenceMean, TokenMean
from headrace.actors.learner.corrections import Correction, Opsm, Tis
from headrace.actors.learner.kl import K3, KlPenalty
from headrace.actors.learner.objectives import Cispo, ClippedRatio, Gspo, Objective
from twins.comparing import difference, trained_tokens
from twins.tokens import Token

MOST_TOKENS = 12


@dataclass(frozen=True)
class Counterpart:
    """Ours, and the settings of GRPOConfig that name the same loss."""

    objective: Objective
    aggregation: Aggregation
    settings: dict[str, Any]
    kl: KlPenalty | None = None
    correction: Correction | None = None


CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.2}
COUNTERPARTS = {
    "grpo": Counterpart(ClippedRatio(), SequenceMean(), {"loss_type": "grpo", **CLIP}),
    "grpo, k3": Counterpart(
        ClippedRatio(), SequenceMean(), {"loss_type": "grpo", "beta": 0.04, **CLIP}, kl=K3(coefficient=0.04)
    ),
    "grpo, tis": Counterpart(
        ClippedRatio(), SequenceMean(), {"loss_type": "grpo", "weights": True, **CLIP}, correction=Tis(cap=2.0)
    ),
    "grpo, opsm": Counterpart(
        ClippedRatio(), SequenceMean(), {"loss_type": "grpo", "off_policy": 0.1, **CLIP}, correction=Opsm(delta=0.1)
    ),
    "dr_grpo": Counterpart(ClippedRatio(), Constant(tokens=MOST_TOKENS), {"loss_type": "dr_grpo", **CLIP}),
    "bnpo (token_mean)": Counterpart(ClippedRatio(), TokenMean(), {"loss_type": "bnpo", **CLIP}),
    "dapo": Counterpart(
        ClippedRatio(clip_high=0.28), TokenMean(), {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28}
    ),
    "gspo": Counterpart(
        Gspo(),
        SequenceMean(),
        {"loss_type": "grpo", "level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    # There epsilon_high is the cap itself, here the cap is 1 + clip_high.
    "cispo": Counterpart(
        Cispo(ratio="rho", clip_high=4.0), TokenMean(), {"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 5.0}
    ),
}


def trl_differences(part: Counterpart, sequences: Sequence[Sequence[Token]]) -> tuple[float, float]:
    """→ of the loss, of its gradient by each log pi; pi_old stands for pi_ref too."""
    ours = trained_tokens(sequences)
    loss, slopes_N = _our_loss(part, ours)
    theirs, their_slopes_N = _their_loss(part, sequences)
    return difference([loss], [theirs]), difference(slopes_N, their_slopes_N)


def _our_loss(part: Counterpart, tokens: Any) -> tuple[float, np.ndarray]:
    objective_N = part.objective(tokens).objective_N
    if part.correction is not None:
        objective_N = part.correction(tokens) * objective_N
    if part.kl is not None:
        objective_N = objective_N - part.kl(tokens.logprobs_N, tokens.proximal_logprobs_N)
    counts_S = np.bincount(tokens.sequence_N.numpy())
    weights_S = torch.from_numpy(part.aggregation(counts_S, np.arange(len(counts_S))))
    loss = -(weights_S[tokens.sequence_N] * objective_N).sum()
    (slopes_N,) = torch.autograd.grad(loss, tokens.logprobs_N)
    return float(loss.detach()), slopes_N.numpy()


def _their_loss(part: Counterpart, sequences: Sequence[Sequence[Token]]) -> tuple[float, np.ndarray]:
    from trl import GRPOTrainer

    mask = np.zeros((len(sequences), MOST_TOKENS))
    columns = {name: np.zeros_like(mask) for name in ("held", "old", "mu")}
    for row, sequence in enumerate(sequences):
        mask[row, : len(sequence)] = 1
        for name, column in columns.items():
            column[row, : len(sequence)] = [getattr(token, name) for token in sequence]
    logps = torch.from_numpy(columns["held"]).requires_grad_(True)
    old, mu = torch.from_numpy(columns["old"]), torch.from_numpy(columns["mu"])
    completion = torch.ones(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": completion[:, :1],
        "prompt_mask": completion[:, :1],
        "completion_ids": completion,
        "completion_mask": torch.from_numpy(mask),
        "advantages": torch.tensor([sequence[0].advantage for sequence in sequences], dtype=torch.float64),
        "old_per_token_logps": old,
        "sampling_per_token_logps": mu,
        "ref_per_token_logps": old,
        "importance_sampling_ratio": torch.clamp((old - mu).exp(), max=2.0),
        "num_items_in_batch": torch.tensor(mask.sum()),
    }
    loss = GRPOTrainer._compute_loss(_trainer(part.settings, logps), SimpleNamespace(training=True), inputs)
    (slopes,) = torch.autograd.grad(loss, logps)
    return float(loss.detach()), slopes.numpy()[mask.astype(bool)]


def _trainer(settings: dict[str, Any], logps: torch.Tensor) -> Any:
    """What `_compute_loss` reads of its trainer."""
    from trl import GRPOTrainer

    return SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=settings.get("off_policy"),
        importance_sampling_level=settings.get("level", "token"),
        beta=settings.get("beta", 0.0),
        loss_type=settings["loss_type"],
        epsilon_low=settings["epsilon_low"],
        epsilon_high=settings["epsilon_high"],
        use_vllm=settings.get("weights", False),
        vllm_importance_sampling_correction=settings.get("weights", False),
        max_completion_length=MOST_TOKENS,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x
        ),
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
