"""Feature maps of RFA's variants, Performer and the linear transformer against their kernels."""

import math

import pytest
import torch
from torch.nn import functional as F

from models.ops.feature_maps import (
    _Relu,
    arccos_features,
    elu_features,
    gaussian_features,
    orthogonal_matrices,
    positive_features,
    relu_features,
    sin_cos,
    sin_cos_naive,
)
from models.ops.linear_attention import linear_attention
from models.ops.softmax_attention import softmax_attention

SIZES = (64, 1024, 16384)


def assert_falls_like_one_over_root(errors: list[float]) -> None:
    """Sixteen times the features, a quarter of the error."""
    assert 2.5 < errors[0] / errors[1] < 6.5
    assert 2.5 < errors[1] / errors[2] < 6.5


def test_arccos_features_estimate_their_kernel() -> None:
    x, y = (F.normalize(torch.randn(1, 1, 300, 8), dim=-1) for _ in range(2))
    angle = (x * y).sum(-1).clamp(-1, 1).acos()
    exact = (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
    errors = []
    for size in SIZES:
        w = torch.randn(1, size, 8)
        errors.append(((arccos_features(x, w) * arccos_features(y, w)).sum(-1) - exact).square().mean().sqrt().item())
    assert_falls_like_one_over_root(errors)


def test_performer_converges_to_softmax_attention() -> None:
    q, k, v = torch.randn(3, 1, 2, 80, 8).mul(0.5).unbind(0)
    exact = softmax_attention(q, k, v)

    def error(size: int) -> float:
        w = torch.randn(size, 8)
        estimate = linear_attention(positive_features(q, w), positive_features(k, w, per_row=False), v, eps=1e-9)
        return (estimate - exact).square().mean().item()

    # Over several draws, because the largest of the positive features decides much of one draw's error.
    assert_falls_like_one_over_root([(sum(error(size) for _ in range(8)) / 8) ** 0.5 for size in SIZES])


def test_sin_cos_and_its_gradient_are_the_definition() -> None:
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(sin_cos(x), sin_cos_naive(x))
    assert torch.autograd.gradcheck(sin_cos, (x,))


def test_compiled_relu_and_its_gradient_are_torchs() -> None:
    x = torch.cat((torch.zeros(5), torch.randn(200))).double().requires_grad_()
    weights = torch.randn(205).double()
    (expected,) = torch.autograd.grad((torch.relu(x) * weights).sum(), x)
    (found,) = torch.autograd.grad((_Relu.apply(x) * weights).sum(), x)
    assert torch.equal(found, expected)
    assert torch.equal(_Relu.apply(x), torch.relu(x))
    away = torch.where(x.detach().abs() < 1e-2, 1.0, x.detach()).requires_grad_()  # from the corner
    assert torch.autograd.gradcheck(_Relu.apply, away)


def test_positive_features_are_the_formula_up_to_the_factor() -> None:
    x, w = torch.randn(1, 1, 5, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    y = x * 4**-0.25
    plain = torch.exp(y @ w.T - y.square().sum(-1, keepdim=True) / 2)
    for per_row in (True, False):
        ratio = positive_features(x, w, per_row=per_row) / plain
        spread = ratio if not per_row else ratio / ratio[..., :1]
        torch.testing.assert_close(spread, torch.ones_like(ratio) * spread[..., :1, :1])


def test_positive_features_neither_overflow_nor_vanish() -> None:
    x, w = torch.randn(1, 1, 9, 4) * 1e4, torch.randn(16, 4)
    for per_row in (True, False):
        features = positive_features(x, w, per_row=per_row)
        assert features.isfinite().all()
        assert features.amax() == 1.0
    everything = torch.ones(1, 9, dtype=torch.bool)
    assert positive_features(x, w, everything, per_row=False).isfinite().all()


def test_simple_features_by_hand() -> None:
    x = torch.tensor([[[[-1.0, 0.0, 2.0]]]])
    torch.testing.assert_close(elu_features(x), torch.tensor([[[[math.exp(-1), 1.0, 3.0]]]]))
    w = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(relu_features(x, w), torch.tensor([[[[1e-3, 2 / 2**0.5 + 1e-3]]]]))


def test_orthogonal_matrices() -> None:
    w = orthogonal_matrices(50, 20, 8)
    assert w.shape == (50, 20, 8)
    for block in (w[:, :8], w[:, 8:16], w[:, 16:]):
        directions = F.normalize(block, dim=-1)
        gram = directions @ directions.transpose(-1, -2)
        torch.testing.assert_close(gram, torch.eye(gram.shape[-1]).expand_as(gram), atol=1e-5, rtol=0)
    many = orthogonal_matrices(4000, 8, 8)
    # Each row on its own is N(0, I): mean 0, variance 1 in every entry, chi-distributed length.
    assert many.mean((0, 1)).abs().max() < 0.03
    assert (many.var((0, 1)) - 1).abs().max() < 0.04
    assert many.square().sum(-1).mean().item() == pytest.approx(8, abs=0.15)


def test_orthogonal_rows_estimate_better() -> None:
    x, y = torch.randn(2, 1, 1, 200, 8).mul(0.5).unbind(0)
    exact = torch.exp(-(x - y).square().sum(-1) / 2)

    def error(w: torch.Tensor) -> torch.Tensor:
        return ((gaussian_features(x, w) * gaussian_features(y, w)).sum(-1) - exact).square().mean()

    plain = torch.stack([error(torch.randn(1, 8, 8)) for _ in range(200)]).mean()
    orthogonal = torch.stack([error(orthogonal_matrices(1, 8, 8)) for _ in range(200)]).mean()
    assert orthogonal < 0.9 * plain
