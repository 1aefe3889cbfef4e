"""Everything that one step of the `rl` stage reports to the monitor, under its names. Pure."""

from __future__ import annotations

import numpy as np

from headrace.actors.learner.figures.ess import sequence_ess, token_ess
from headrace.actors.learner.figures.lag import lag_figures
from headrace.actors.learner.figures.mismatch import Gap, gaps_by_age
from headrace.actors.learner.trainer import StepReport


def step_figures(report: StepReport) -> dict[str, float]:
    """`logprob_gap/same_version_*` has only its count (0) where no token
    was sampled by the very weights that are trained."""
    log_ratios_N = report.logprobs_N - report.behaviour_N
    same, older = gaps_by_age(report.logprobs_N, report.behaviour_N, report.lags_N)
    num_tokens = len(report.logprobs_N)
    return {
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "lr": report.lr,
        "lr/scale": report.lr_scale,
        "tokens": float(num_tokens),
        "positions": float(report.num_positions),
        "micro_batches": float(report.num_micro_batches),
        "sessions": float(len(np.unique(report.sequence_N))),
        "applied": float(report.applied),
        "entropy_estimate": float(-report.logprobs_N.mean()),
        "ess/token": token_ess(log_ratios_N),
        "ess/sequence": sequence_ess(log_ratios_N, report.sequence_N),
        "kl/penalty": report.penalty,
        "updates": float(report.num_updates),
        "weight/clipped_fraction": report.num_clipped / report.num_trained,
        "weight/masked_fraction": report.num_masked / report.num_trained,
        **report.critic,
        **{f"correction/{name}_mean": mean for name, (mean, _) in report.corrections.items()},
        **{f"correction/{name}_left_out": fraction for name, (_, fraction) in report.corrections.items()},
        **lag_figures(report.lags_N, report.sequence_N),
        **_gap_figures("logprob_gap/same_version", same),
        **_gap_figures("logprob_gap/older", older),
        **{f"seconds/{name}": value for name, value in report.seconds.items()},
    }


def _gap_figures(prefix: str, gap: Gap) -> dict[str, float]:
    if not gap.num_tokens:
        return {f"{prefix}_tokens": 0.0}
    return {
        f"{prefix}_tokens": float(gap.num_tokens),
        f"{prefix}_mean": gap.mean_abs,
        f"{prefix}_max": gap.max_abs,
        f"{prefix}_kl": gap.kl,
    }
