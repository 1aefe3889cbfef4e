"""What `learner.lora` may say: plain values, checked. No torch, no PEFT; the learner reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

ALL_LINEAR = "all-linear"


class LoraSettings:
    """Of each target module the weight acts as W + (alpha / rank) · B @ A, and only A and B are trained
    (E. Hu et al., "LoRA", arXiv 2106.09685).

    rank: of B @ A; engines hold memory for as much. target_modules: "all-linear" (every linear layer but the output
    head), or the ends of the modules' names ("q_proj"). base_dtype: of the frozen weights, in memory and as sent after
    `pretrain`; A and B are float32. There is no dropout: the engine has none, and its log-probs must be ours."""

    def __init__(
        self,
        *,
        rank: int = 16,
        alpha: float = 32.0,
        target_modules: str | Sequence[str] = ALL_LINEAR,
        base_dtype: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        if rank < 1:
            raise ValueError(f"lora.rank must be >= 1, got {rank}; to train every weight choose learner/lora=none")
        if not 0 < alpha < float("inf"):
            raise ValueError(f"lora.alpha must be > 0, got {alpha}; a usual value is twice the rank")
        if isinstance(target_modules, str) and target_modules != ALL_LINEAR:
            raise ValueError(
                f"lora.target_modules must be {ALL_LINEAR} or a list of the ends of modules' names, got "
                f"{target_modules!r}; write [{target_modules}]"
            )
        if not target_modules:
            raise ValueError(f"lora.target_modules must name a module, got []; use {ALL_LINEAR}")
        if base_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"lora.base_dtype must be float32 or bfloat16, got {base_dtype!r}")
        self.rank = rank
        self.alpha = float(alpha)
        self.target_modules = target_modules if isinstance(target_modules, str) else tuple(target_modules)
        self.base_dtype = base_dtype
