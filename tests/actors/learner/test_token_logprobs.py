"""Log-probs by chunks equal those of all logits at once, and so do their gradients; the logits are never whole."""

from __future__ import annotations

import pytest
import torch

from headrace.actors.learner.token_logprobs import plain_token_logprobs, token_logprobs

N, H, V = 13, 8, 31


def inputs(dtype: torch.dtype, *, bias: bool = True, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """hidden_NH, weight_VH, bias_V or None, targets_N, temperature_N; the first three require their gradients."""
    torch.manual_seed(seed)
    hidden_NH = torch.randn(N, H, dtype=dtype, requires_grad=True)
    weight_VH = torch.randn(V, H, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(V, dtype=dtype, requires_grad=True) if bias else None
    return hidden_NH, weight_VH, bias_V, torch.randint(0, V, (N,)), torch.rand(N).to(dtype) + 0.5


def values_and_gradients(function, tensors, trained, grad_N, **options):
    for tensor in trained:
        tensor.grad = None
    logprobs_N = function(*tensors, **options)
    logprobs_N.backward(grad_N.to(logprobs_N.dtype))
    return [logprobs_N.detach(), *(tensor.grad.clone() for tensor in trained)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-13), (torch.float32, 1e-4)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1, 4, N, 100])
def test_values_and_gradients_are_those_of_the_plain_form(chunk_tokens, bias, dtype, bound):
    """What sums in another order differs by rounding: more on one CPU than on another."""
    tensors = inputs(dtype, bias=bias)
    trained = [tensor for tensor in tensors[:3] if tensor is not None]
    grad_N = torch.randn(N, dtype=dtype)
    ours = values_and_gradients(token_logprobs, tensors, trained, grad_N, chunk_tokens=chunk_tokens)
    plain = values_and_gradients(plain_token_logprobs, tensors, trained, grad_N)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


def test_gradients_are_those_of_finite_differences():
    hidden_NH, weight_VH, bias_V, targets_N, temperature_N = inputs(torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_logprobs(h, w, b, targets_N, temperature_N, chunk_tokens=5),
        (hidden_NH, weight_VH, bias_V),
    )


def test_autocast_reaches_neither_pass():
    tensors = inputs(torch.float32)
    grad_N = torch.randn(N)
    expected = values_and_gradients(token_logprobs, tensors, tensors[:3], grad_N, chunk_tokens=4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = values_and_gradients(token_logprobs, tensors, tensors[:3], grad_N, chunk_tokens=4)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_bfloat16_states_and_head_are_computed_in_float32_and_get_gradients_of_their_own_kind():
    tensors = inputs(torch.bfloat16)
    grad_N = torch.randn(N)
    tensors = (*tensors[:4], tensors[4].float())
    ours = values_and_gradients(token_logprobs, tensors, tensors[:3], grad_N, chunk_tokens=4)
    plain = values_and_gradients(plain_token_logprobs, tensors, tensors[:3], grad_N)
    assert ours[0].dtype == torch.float32
    assert {gradient.dtype for gradient in ours[1:]} == {torch.bfloat16}
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-6, atol=2e-6)
    for a, b in zip(ours[1:], plain[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)  # one rounding of bfloat16


def test_a_frozen_head_gets_no_gradient():
    hidden_NH, weight_VH, bias_V, targets_N, temperature_N = inputs(torch.float32)
    weight_VH.requires_grad_(False)
    bias_V.requires_grad_(False)
    token_logprobs(hidden_NH, weight_VH, bias_V, targets_N, temperature_N, chunk_tokens=4).sum().backward()
    assert hidden_NH.grad is not None
    assert weight_VH.grad is None
    assert bias_V.grad is None


def test_a_tied_weight_gets_both_gradients():
    """The head's weight is also that of the embedding."""
    torch.manual_seed(0)
    weight_VH = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    ids_N, targets_N = torch.randint(0, V, (N,)), torch.randint(0, V, (N,))
    ones_N = torch.ones(N, dtype=torch.float64)
    gradients = []
    for function, options in ((token_logprobs, {"chunk_tokens": 4}), (plain_token_logprobs, {})):
        weight_VH.grad = None
        function(weight_VH[ids_N].tanh(), weight_VH, None, targets_N, ones_N, **options).sum().backward()
        gradients.append(weight_VH.grad.clone())
    torch.testing.assert_close(*gradients)


def test_no_tensor_of_either_pass_has_more_logits_than_a_chunk():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else (out,):
                if isinstance(tensor, torch.Tensor) and tensor.shape[-1:] == (V,):
                    self.numel = max(self.numel, tensor.numel())
            return out

    tensors = inputs(torch.float32)
    seen = {}
    for name, function in (
        ("chunked", lambda: token_logprobs(*tensors, chunk_tokens=9)),
        ("plain", lambda: plain_token_logprobs(*tensors)),
    ):
        with Largest() as largest:
            function().sum().backward()
        seen[name] = largest.numel
    assert seen == {"chunked": 9 * V, "plain": N * V}, "larger than the weight, H * V"
