"""log-probs of chosen tokens out of hidden states, the vocabulary's logits never whole in memory: neither those of a
micro-batch nor their gradient, but those of one chunk of positions at a time. Knows no model and no micro-batch.

    log pi(v | n) = z[n, v] / T[n] − log sum over u of exp(z[n, u] / T[n]),   z = h W' + b

The backward pass computes each chunk's logits again: 8 instead of 6 multiplications with the head's weight, for memory
that no longer grows with the micro-batch. Called by the policy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable


def token_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    temperature_N: torch.Tensor,
    *,
    chunk_tokens: int,
) -> torch.Tensor:
    """float32[N] (float64 where `hidden_NH` is), with gradient into hidden states, weight and bias as far as they
    require it. Computed in float32 at least, under autocast too. targets_N: int64; temperature_N: > 0;
    chunk_tokens: >= 1, positions whose logits stand in memory at once."""
    logprobs_N: torch.Tensor = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, bias_V, targets_N, temperature_N, chunk_tokens
    )
    return logprobs_N


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature_N: torch.Tensor,
        chunk_tokens: int,
    ) -> torch.Tensor:
        dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
        logprobs_N = torch.empty(len(hidden_NH), dtype=dtype, device=hidden_NH.device)
        normaliser_N = torch.empty_like(logprobs_N)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            chunks = _Chunks(hidden_NH, weight_VH, bias_V, temperature_N, chunk_tokens, dtype)
            for part in chunks.parts:
                logits_CV = chunks.logits(part)
                normaliser_N[part] = torch.logsumexp(logits_CV, dim=1)
                logprobs_N[part] = logits_CV.gather(1, targets_N[part, None])[:, 0]
        logprobs_N -= normaliser_N
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, temperature_N, normaliser_N)
        ctx.chunk_tokens = chunk_tokens
        return logprobs_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, targets_N, temperature_N, normaliser_N = ctx.saved_tensors
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        dtype = normaliser_N.dtype
        grad_hidden_NH = torch.empty_like(hidden_NH) if to_hidden else None
        grad_weight_VH = torch.zeros_like(weight_VH, dtype=dtype) if to_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=dtype) if to_bias else None
        with torch.autocast(hidden_NH.device.type, enabled=False):
            chunks = _Chunks(hidden_NH, weight_VH, bias_V, temperature_N, ctx.chunk_tokens, dtype)
            for part in chunks.parts:
                scale_C1 = (grad_N[part] / temperature_N[part])[:, None]
                # d log pi(target) / d z = (1 at the target − pi) / T, written over the logits themselves
                grad_CV = chunks.logits(part).sub_(normaliser_N[part, None]).exp_().mul_(-scale_C1)
                grad_CV.scatter_add_(1, targets_N[part, None], scale_C1)
                if grad_hidden_NH is not None:
                    grad_hidden_NH[part] = (grad_CV @ chunks.weight_VH).to(hidden_NH.dtype)
                if grad_weight_VH is not None:
                    grad_weight_VH.addmm_(grad_CV.T, hidden_NH[part].to(dtype))
                if grad_bias_V is not None:
                    grad_bias_V += grad_CV.sum(dim=0)
        if grad_weight_VH is not None:
            grad_weight_VH = grad_weight_VH.to(weight_VH.dtype)
        if grad_bias_V is not None:
            grad_bias_V = grad_bias_V.to(bias_V.dtype)
        return grad_hidden_NH, grad_weight_VH, grad_bias_V, None, None, None


class _Chunks:
    """The logits of consecutive parts, divided by the temperature; each part's lie where the last one's did."""

    def __init__(
        self,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        temperature_N: torch.Tensor,
        chunk_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        num = len(hidden_NH)
        self.parts = [slice(start, min(start + chunk_tokens, num)) for start in range(0, num, chunk_tokens)]
        self.weight_VH = weight_VH.to(dtype)
        self._bias_V = None if bias_V is None else bias_V.to(dtype)
        self._hidden_NH = hidden_NH
        self._temperature_N = temperature_N
        self._buffer_CV = torch.empty(
            min(chunk_tokens, num), len(weight_VH), dtype=dtype, device=hidden_NH.device, requires_grad=False
        )

    def logits(self, part: slice) -> torch.Tensor:
        """[C, V], valid until the next call; the caller may write over it."""
        logits_CV = self._buffer_CV[: part.stop - part.start]
        hidden_CH = self._hidden_NH[part].to(logits_CV.dtype)
        torch.mm(hidden_CH, self.weight_VH.T, out=logits_CV)
        if self._bias_V is not None:
            logits_CV += self._bias_V
        return logits_CV.div_(self._temperature_N[part, None])


def plain_token_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_N: torch.Tensor,
    temperature_N: torch.Tensor,
) -> torch.Tensor:
    """The same, all logits at once, gradients by autograd: what the chunks are compared with."""
    dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
    bias_V = None if bias_V is None else bias_V.to(dtype)
    logits_NV = nn.functional.linear(hidden_NH.to(dtype), weight_VH.to(dtype), bias_V) / temperature_N[:, None]
    chosen_N: torch.Tensor = logits_NV.gather(1, targets_N[:, None])[:, 0] - torch.logsumexp(logits_NV, dim=1)
    return chosen_N
