"""What is compared with what: each part of the learner's mathematics, as `learner/objective=…` and the like name it,
and its twin. A new part gets a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.actors.learner.advantages import Advantage, Batch, GroupMean, Grpo, Rloo, RunningMean
from headrace.actors.learner.aggregation import Aggregation, Constant, PromptMean, SequenceMean, TokenMean
from headrace.actors.learner.corrections import Correction, Geo, Icepop, Mis, Opsm, Tis, Veto
from headrace.actors.learner.kl import K1, K2, K3, KlPenalty
from headrace.actors.learner.objectives import (
    Cispo,
    ClippedRatio,
    CrossEntropy,
    DecoupledPpo,
    Dppo,
    Gspo,
    IsReinforce,
    Objective,
    Topr,
)
from headrace.actors.learner.penalties.length import concave
from headrace.actors.learner.penalties.overlong import overlong
from twins import advantages as advantage_twins
from twins import aggregation as aggregation_twins
from twins import corrections as correction_twins
from twins import kl as kl_twins
from twins import objectives as twins
from twins import penalties as penalty_twins
from twins.tokens import Twin

OBJECTIVES: dict[str, tuple[Objective, Twin]] = {
    "is_reinforce": (IsReinforce(), twins.is_reinforce),
    "cispo": (Cispo(), twins.cispo),
    "cispo on rho": (Cispo(ratio="rho"), partial(twins.cispo, over="rho")),
    "cispo with clip_low": (
        Cispo(ratio="rho", clip_low=0.2, clip_high=0.3),
        partial(twins.cispo, over="rho", eps_low=0.2, eps_high=0.3),
    ),
    "grpo, dr_grpo": (ClippedRatio(), twins.grpo),
    "dapo": (ClippedRatio(clip_high=0.28), partial(twins.grpo, eps_high=0.28)),
    "gspo": (Gspo(), twins.gspo),
    "decoupled_ppo": (DecoupledPpo(), twins.decoupled_ppo),
    "decoupled_ppo, interpolated": (
        DecoupledPpo(proximal="interpolated"),
        partial(twins.decoupled_ppo, interpolate=True),
    ),
    "topr": (Topr(), twins.topr),
    "dppo": (Dppo(), twins.dppo),
    "cross_entropy": (CrossEntropy(), twins.cross_entropy),
}

ADVANTAGES: dict[str, tuple[Callable[[], Advantage], Callable[[], Callable[[advantage_twins.Batch], list[float]]]]] = {
    "rloo": (Rloo, lambda: advantage_twins.rloo),
    "group_mean": (GroupMean, lambda: advantage_twins.group_mean),
    "grpo": (Grpo, lambda: advantage_twins.grpo),
    "batch": (Batch, lambda: advantage_twins.batch),
    "running_mean": (RunningMean, advantage_twins.RunningMean),
}
"""makers: some keep what they have seen"""

AGGREGATIONS: dict[str, tuple[Aggregation, Callable[[aggregation_twins.Batch], float]]] = {
    "token_mean": (TokenMean(), aggregation_twins.token_mean),
    "sequence_mean": (SequenceMean(), aggregation_twins.sequence_mean),
    "constant": (Constant(tokens=40), partial(aggregation_twins.constant, tokens=40)),
    "prompt_mean": (PromptMean(), aggregation_twins.prompt_mean),
}

CORRECTIONS: dict[str, tuple[Correction, Callable[[Sequence[correction_twins.Token]], list[float]]]] = {
    "tis": (Tis(), correction_twins.tis),
    "icepop": (Icepop(), correction_twins.icepop),
    "mis by token": (Mis(), correction_twins.mis_token),
    "mis by sequence": (Mis(level="sequence"), correction_twins.mis_sequence),
    "veto": (Veto(), correction_twins.veto),
    "opsm": (Opsm(), correction_twins.opsm),
    "geo": (Geo(), correction_twins.geo),
}

KL: dict[str, tuple[KlPenalty, Callable[[float, float], tuple[float, float]]]] = {
    "k1": (K1(coefficient=0.3), partial(kl_twins.k1, beta=0.3)),
    "k2": (K2(coefficient=0.3), partial(kl_twins.k2, beta=0.3)),
    "k3": (K3(coefficient=0.3), partial(kl_twins.k3, beta=0.3)),
}

PENALTIES: dict[str, tuple[Callable[[int], float], Callable[[int], float]]] = {
    "overlong": (
        partial(overlong, max_tokens=40, margin_tokens=9),
        partial(penalty_twins.overlong, maximum=40, margin=9),
    ),
    "length": (partial(concave, k=1e-3, q=0.5), partial(penalty_twins.concave, k=1e-3, q=0.5)),
    "length at q = 1": (partial(concave, k=1e-3, q=1.0), partial(penalty_twins.concave, k=1e-3, q=1.0)),
}
"""of a number of tokens"""
