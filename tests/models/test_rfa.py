"""Random feature attention: features, the linear form, the pool (numbers of sections as in Peng et al. 2021)."""

import pytest
import torch
from torch.nn import functional as F

from models import build_attention
from models.attention.rfa import RandomFeatureAttention
from models.ops.feature_maps import gaussian_features, l2_normalize
from models.ops.linear_attention import linear_attention, linear_attention_naive
from models.ops.softmax_attention import softmax_attention


def build(**settings: object) -> RandomFeatureAttention:
    layer = build_attention("rfa", dim=32, num_heads=4, max_len=64, **settings)
    assert isinstance(layer, RandomFeatureAttention)
    return layer


def test_gaussian_features_are_the_formula() -> None:
    x, w = torch.randn(1, 1, 1, 3), torch.randn(1, 2, 3)
    a, b = (w[0] @ x[0, 0, 0]).tolist()
    expected = torch.tensor([a, b]).sin().tolist() + torch.tensor([a, b]).cos().tolist()
    torch.testing.assert_close(gaussian_features(x, w)[0, 0, 0], torch.tensor(expected) * 0.5**0.5)


def test_gaussian_features_estimate_the_kernel_with_error_like_one_over_root_d() -> None:
    x, y = torch.randn(2, 200, 8).mul(0.5).unsqueeze(1).unsqueeze(0).unbind(1)
    exact = torch.exp(-(x - y).square().sum(-1) / 2)
    errors = []
    for num_features in (64, 1024, 16384):
        w = torch.randn(1, num_features, 8)
        estimate = (gaussian_features(x, w) * gaussian_features(y, w)).sum(-1)
        errors.append((estimate - exact).square().mean().sqrt().item())
    # A factor of 16 in features is one of 4 in error.
    assert 2.5 < errors[0] / errors[1] < 6
    assert 2.5 < errors[1] / errors[2] < 6


@pytest.mark.parametrize("queries", [1, 7, 30])
@pytest.mark.parametrize("keys", [1, 30])
def test_linear_form_equals_the_quadratic_formula(queries: int, keys: int) -> None:
    w = torch.randn(4, 16, 8, dtype=torch.float64)
    phi_q = gaussian_features(l2_normalize(torch.randn(2, 4, queries, 8, dtype=torch.float64)), w)
    phi_k = gaussian_features(l2_normalize(torch.randn(2, 4, keys, 8, dtype=torch.float64)), w)
    v = torch.randn(2, 4, keys, 8, dtype=torch.float64)
    mask = torch.arange(keys) >= torch.tensor([keys, (keys + 1) // 2])[:, None]
    torch.testing.assert_close(
        linear_attention(phi_q, phi_k, v, mask), linear_attention_naive(phi_q, phi_k, v, mask), atol=1e-12, rtol=1e-9
    )


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_layer_equals_the_quadratic_formula_from_the_same_features(temperature: float) -> None:
    layer = build(temperature=temperature).eval()
    torch.nn.init.uniform_(layer.sigma, 0.5, 1.5)
    x = torch.randn(2, 40, 32)
    mask = torch.arange(40) >= torch.tensor([40, 13])[:, None]
    q, k, v = layer.qkv_proj(x).view(2, 40, 3, 4, 8).permute(2, 0, 3, 1, 4)
    w = layer.pool[:4] * layer.sigma / temperature
    phi_q, phi_k = (gaussian_features(u / (u.norm(dim=-1, keepdim=True) + 1e-3), w) for u in (q, k))
    weights = (phi_q @ phi_k.transpose(-1, -2)).masked_fill(mask[:, None, None], 0.0)
    mixed = weights @ v / weights.sum(-1, keepdim=True)
    expected = layer.out_proj(mixed.transpose(1, 2).reshape(2, 40, 32))
    torch.testing.assert_close(layer(x, padding_mask=mask), expected, atol=1e-5, rtol=1e-4)


def test_converges_to_softmax_attention_on_unit_vectors() -> None:
    q, k = (F.normalize(torch.randn(1, 2, 100, 8), dim=-1) for _ in range(2))
    v = torch.randn(1, 2, 100, 8)
    # exp(q . k / sigma^2) with sigma = 1 is softmax without its 1 / sqrt(d).
    exact = softmax_attention(q * 8**0.5, k, v)
    errors = []
    for num_features in (64, 1024, 16384):
        w = torch.randn(2, num_features, 8)
        estimate = linear_attention(gaussian_features(q, w), gaussian_features(k, w), v)
        errors.append((estimate - exact).square().mean().sqrt().item())
    assert 2.5 < errors[0] / errors[1] < 6.5
    assert 2.5 < errors[1] / errors[2] < 6.5
    assert errors[2] < 0.02


def test_gradients_of_the_linear_form_in_float64() -> None:
    phi_q, phi_k = (torch.rand(1, 2, 4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False, False, False, True]])
    assert torch.autograd.gradcheck(lambda *t: linear_attention(*t, padding_mask=mask), (phi_q, phi_k, v))


def test_denominator_near_zero_is_guarded_and_passes_no_gradient() -> None:
    phi_q = torch.tensor([[[[1e-4, 0.0]]]], requires_grad=True)
    phi_k = torch.tensor([[[[1.0, 0.0]]]])
    out = linear_attention(phi_q, phi_k, torch.ones(1, 1, 1, 1), eps=0.1)
    torch.testing.assert_close(out, torch.full((1, 1, 1, 1), 1e-3))
    out.sum().backward()
    # Through the numerator only: d(phi_q / eps).
    torch.testing.assert_close(phi_q.grad, torch.tensor([[[[10.0, 0.0]]]]))


def test_the_guard_leaves_the_farthest_single_key_alone() -> None:
    k = F.normalize(torch.randn(1, 1, 1, 8), dim=-1)
    w, v = torch.randn(1, 16384, 8), torch.randn(1, 1, 1, 8)
    out = linear_attention(gaussian_features(-k, w), gaussian_features(k, w), v)
    torch.testing.assert_close(out, v, atol=1e-4, rtol=1e-3)


def test_padded_keys_vanish_from_the_denominator_too() -> None:
    phi = torch.rand(1, 1, 3, 4)
    v = torch.ones(1, 1, 3, 1)
    out = linear_attention(phi, phi, v, torch.tensor([[False, True, True]]), eps=1e-9)
    torch.testing.assert_close(out, torch.ones(1, 1, 3, 1))


def test_sums_in_float32_under_bfloat16() -> None:
    keys = 20_000
    phi_k = torch.full((1, 1, keys, 1), 1.0, dtype=torch.bfloat16)
    v = torch.full((1, 1, keys, 1), 1.0, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = linear_attention(phi_k[:, :, :1], phi_k, v)
    assert out.dtype == torch.bfloat16
    assert out.item() == 1.0


def test_queries_and_keys_are_normalised_before_the_projection() -> None:
    layer = build().eval()
    q, k, v = torch.randn(3, 2, 4, 10, 8).unbind(0)
    torch.testing.assert_close(layer.attend(q, k, v, None), layer.attend(100 * q, 3 * k, v, None), atol=2e-3, rtol=1e-2)


def test_training_draws_anew_evaluation_never() -> None:
    layer = build(pool_size=20)
    x = torch.randn(1, 12, 32)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    torch.testing.assert_close(layer.random_matrices(), layer.pool[:4] * layer.sigma)


def test_a_draw_gives_every_head_a_matrix_of_its_own_and_follows_the_seed() -> None:
    layer = build(pool_size=5).train()
    for seed in range(10):
        torch.manual_seed(seed)
        drawn = layer.random_matrices()
        torch.manual_seed(seed)
        assert torch.equal(drawn, layer.random_matrices())
        used = {next(i for i, m in enumerate(layer.pool) if torch.equal(m, d)) for d in drawn}
        assert len(used) == 4


def test_pool_is_saved_and_is_not_a_parameter() -> None:
    layer = build()
    assert "pool" in layer.state_dict()
    assert layer.pool.shape == (500, 64, 8)
    softmax = build_attention("softmax", dim=32, num_heads=4, max_len=64)
    extra = sum(p.numel() for p in layer.parameters()) - sum(p.numel() for p in softmax.parameters())
    assert extra == layer.sigma.numel() == 32
    assert layer.sigma.requires_grad


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool_size": 3}, "pool_size 3 is smaller than num_heads 4"),
        ({"num_features": 0}, "num_features is 0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)
