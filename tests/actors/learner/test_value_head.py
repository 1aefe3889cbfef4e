"""The value loss against its twin, value and gradient; where its gradient goes; what the settings refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import critic as twins

from headrace.actors.learner.critic import CriticSettings
from headrace.actors.learner.value_head import Critic, value_loss

NUMBER = st.floats(-2, 2)
VALUES = st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=10)
CPU = torch.device("cpu")


def tensors(tokens, dtype=torch.float64):
    return [torch.tensor(column, dtype=dtype) for column in zip(*tokens, strict=True)]


@pytest.mark.parametrize("clip", [None, 0.2, 1.0])
@settings(deadline=None)
@given(tokens=VALUES)
def test_the_value_loss_equals_its_twin(tokens, clip):
    values_N, old_N, targets_N = tensors(tokens)
    loss_N, clipped_N = value_loss(values_N, old_N, targets_N, clip=clip)
    np.testing.assert_allclose(loss_N, [twins.value_loss(*token, clip)[0] for token in tokens], rtol=0, atol=1e-9)
    for (value, old, target), clipped in zip(tokens, clipped_N.tolist(), strict=True):
        if clipped:
            assert abs(value - old) > clip - 1e-9
            assert (value - old) * (target - old) > 0 or abs(target - old) < clip


@settings(deadline=None)
@given(tokens=VALUES)
def test_the_gradient_of_the_value_loss_equals_its_twin(tokens):
    tokens = [t for t in tokens if min(abs(abs(t[0] - t[1]) - 0.2), abs(t[0] + t[1] - 2 * t[2])) > 1e-6]
    tokens = tokens or [(0.5, 0.0, 1.0)]
    values_N, old_N, targets_N = tensors(tokens)
    values_N.requires_grad_()
    value_loss(values_N, old_N, targets_N, clip=0.2)[0].sum().backward()
    np.testing.assert_allclose(values_N.grad, [twins.value_loss(*token, 0.2)[1] for token in tokens], rtol=0, atol=1e-9)


def test_the_gradient_is_that_of_finite_differences():
    values_N = torch.tensor([0.05, 0.5, -0.5, 0.31], dtype=torch.float64, requires_grad=True)
    old_N = torch.zeros(4, dtype=torch.float64)
    targets_N = torch.tensor([1.0, 1.0, 1.0, 0.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda v: value_loss(v, old_N, targets_N, clip=0.2)[0], (values_N,))


def test_what_went_too_far_towards_its_target_has_no_gradient_and_what_went_astray_has():
    values_N = torch.tensor([0.5, -0.5], requires_grad=True)
    loss_N, clipped_N = value_loss(values_N, torch.zeros(2), torch.ones(2), clip=0.2)
    loss_N.sum().backward()
    assert clipped_N.tolist() == [True, False]
    assert values_N.grad.tolist() == [0.0, -1.5]


@pytest.mark.parametrize("mlp_width", [0, 8])
@pytest.mark.parametrize("detach", [True, False])
def test_values_begin_at_0_and_train_the_layers_below_only_where_told(mlp_width, detach):
    critic = Critic(CriticSettings(detach=detach, mlp_width=mlp_width), hidden_size=6, device=CPU)
    hidden_NH = torch.randn(5, 6, requires_grad=True)
    values_N = critic.values(hidden_NH)
    assert values_N.dtype == torch.float32
    assert values_N.tolist() == [0.0] * 5
    with torch.no_grad():
        for parameter in critic.head.parameters():
            parameter.add_(0.1)
    critic.values(hidden_NH).sum().backward()
    assert all(p.grad is not None for p in critic.head.parameters())
    assert (hidden_NH.grad is None) is detach


def test_the_head_reads_half_precision_in_float32():
    critic = Critic(CriticSettings(), hidden_size=4, device=CPU)
    assert critic.values(torch.ones(2, 4, dtype=torch.bfloat16)).dtype == torch.float32


def test_explained_variance_is_that_of_the_returns():
    critic = Critic(CriticSettings(whiten=False), hidden_size=4, device=CPU)
    values = [np.array([1.0]), np.array([0.0])]
    figures = critic.credit([1.0, 0.0], values, penalties=None, log_ratios=None, weighs=True).figures
    assert figures["value/explained_variance"] == 1.0
    figures = critic.credit([1.0, 0.0], values[::-1], penalties=None, log_ratios=None, weighs=True).figures
    assert figures["value/explained_variance"] == -3.0
    figures = critic.credit([1.0, 1.0], values, penalties=None, log_ratios=None, weighs=True).figures
    assert "value/explained_variance" not in figures, "equal returns have no variance"


def test_vtraces_ratio_stands_in_the_advantage_where_nothing_else_weighs():
    """By IMPALA rho_s (r_s + gamma v_{s+1} − V_s), rho = min(1, 1/2) and min(1, 2)."""
    critic = Critic(CriticSettings(estimator="vtrace", whiten=False), hidden_size=4, device=CPU)
    given = {"penalties": None, "log_ratios": [np.log([0.5]), np.log([2.0])]}
    rewards, values = [1.0, 1.0], [np.array([0.2]), np.array([0.2])]
    alone = critic.credit(rewards, values, weighs=True, **given)
    np.testing.assert_allclose(np.concatenate(alone.advantages), [0.4, 0.8])
    np.testing.assert_allclose(np.concatenate(alone.targets), [0.2 + 0.5 * 0.8, 1.0])
    beside = critic.credit(rewards, values, weighs=False, **given)
    np.testing.assert_allclose(np.concatenate(beside.advantages), [0.8, 0.8])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"estimator": "td"}, "estimator must be one of gae, vtrace, got 'td'"),
        ({"gamma": 1.1}, "critic.gamma"),
        ({"gae_lambda": math.nan}, "critic.gae_lambda"),
        ({"c_bar": 2.0}, "c_bar <= rho_bar"),
        ({"rho_bar": math.inf}, "finite"),
        ({"value_clip": 0.0}, "critic.value_clip must be > 0 or null"),
        ({"coefficient": 0.0}, "critic.coefficient"),
        ({"lr": 0.0}, "critic.lr"),
        ({"mlp_width": -1}, "critic.mlp_width"),
    ],
)
def test_settings_that_cannot_work_are_named(given, named):
    with pytest.raises(ValueError, match=named):
        CriticSettings(**given)
