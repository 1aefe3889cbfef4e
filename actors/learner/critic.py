"""What `learner.critic` may say: plain values, checked. No torch; the learner reads it."""

from __future__ import annotations

import math
from typing import Literal, get_args

Estimator = Literal["gae", "vtrace"]


class CriticSettings:
    """A value head beside the policy's own, V(s_t) before token t, and how tokens are credited by it.

    estimator: "gae", or "vtrace" for data of older policies, which cuts pi_old / mu at rho_bar (towards whose values V
    goes) and c_bar (how far a surprise is carried back). gamma, gae_lambda: both 1 is the return minus the value.
    whiten: advantages get mean 0 and deviation 1 over the batch's tokens.
    value_clip: how far V may go from what it was before the batch and still have a gradient; None: any far.
    coefficient: of the value loss beside the objective. lr: of the head, whatever the learner's schedule does.
    detach: the value loss trains the head alone; False: the layers below it too.
    mlp_width: 0: the head is one linear layer; else so many units between, with tanh.
    """

    def __init__(
        self,
        *,
        estimator: Estimator = "gae",
        gamma: float = 1.0,
        gae_lambda: float = 1.0,
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        whiten: bool = True,
        value_clip: float | None = 0.2,
        coefficient: float = 0.5,
        lr: float = 1e-3,
        detach: bool = True,
        mlp_width: int = 0,
    ) -> None:
        if estimator not in get_args(Estimator):
            raise ValueError(f"critic.estimator must be one of {', '.join(get_args(Estimator))}, got {estimator!r}")
        for name, share in (("gamma", gamma), ("gae_lambda", gae_lambda)):
            if not 0 <= share <= 1:
                raise ValueError(f"critic.{name} must be in [0, 1], got {share}; 1 credits what follows in full")
        if not 0 < c_bar <= rho_bar < math.inf:
            raise ValueError(
                f"critic needs 0 < c_bar <= rho_bar, finite, got {c_bar} and {rho_bar}; 1 and 1 are IMPALA's"
            )
        if value_clip is not None and not 0 < value_clip < math.inf:
            raise ValueError(f"critic.value_clip must be > 0 or null, got {value_clip}; null does not clip")
        if not 0 < coefficient < math.inf:
            raise ValueError(f"critic.coefficient must be > 0, got {coefficient}; for no critic choose critic=none")
        if not 0 < lr < math.inf:
            raise ValueError(f"critic.lr must be > 0, got {lr}; a head that is not trained says nothing")
        if mlp_width < 0:
            raise ValueError(f"critic.mlp_width must be >= 0, got {mlp_width}; 0 is a linear head")
        self.estimator = estimator
        self.gamma = float(gamma)
        self.gae_lambda = float(gae_lambda)
        self.rho_bar = float(rho_bar)
        self.c_bar = float(c_bar)
        self.whiten = whiten
        self.value_clip = value_clip
        self.coefficient = float(coefficient)
        self.lr = float(lr)
        self.detach = detach
        self.mlp_width = mlp_width
