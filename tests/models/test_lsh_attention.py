"""Hashing attention against its definition through a matrix of all pairs (Kitaev et al. 2020)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import build_attention
from models.ops.lsh_attention import SELF_PENALTY, hash_buckets, lsh_attention, lsh_attention_naive

HEADS, HEAD_DIM = 3, 8


def inputs(seq_len: int, rounds: int, num_buckets: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    q, v = torch.randn(2, 2, HEADS, seq_len, HEAD_DIM, dtype=torch.float64).unbind(0)
    rotations = torch.randn(HEADS, rounds, HEAD_DIM, num_buckets // 2, dtype=torch.float64)
    return q.requires_grad_(), v.requires_grad_(), hash_buckets(q, rotations)


@settings(max_examples=40, deadline=None)
@given(
    seq_len=st.integers(1, 70),
    rounds=st.integers(1, 3),
    chunk_size=st.sampled_from([1, 4, 16, 64]),
    padded=st.booleans(),
)
def test_outputs_and_gradients_are_those_of_the_definition(
    seq_len: int, rounds: int, chunk_size: int, padded: bool
) -> None:
    q, v, buckets = inputs(seq_len, rounds)
    lengths = torch.tensor([seq_len, (seq_len + 1) // 2])
    mask = torch.arange(seq_len) >= lengths[:, None] if padded else None
    real = torch.ones(2, 1, seq_len, 1) if mask is None else (~mask)[:, None, :, None].double()
    fast = lsh_attention(q, v, buckets, mask, chunk_size) * real
    plain = lsh_attention_naive(q, v, buckets, mask, chunk_size) * real
    torch.testing.assert_close(fast, plain)
    weights = torch.randn_like(fast)
    for a, b in zip(
        torch.autograd.grad((fast * weights).sum(), (q, v)),
        torch.autograd.grad((plain * weights).sum(), (q, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rounds", [1, 4])
def test_one_chunk_is_exact_softmax_attention_with_shared_queries_and_keys(rounds: int) -> None:
    q, v, buckets = inputs(50, rounds)
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).transpose(-1, -2) + SELF_PENALTY * torch.eye(50)
    torch.testing.assert_close(lsh_attention(q, v, buckets, chunk_size=64), scores.softmax(-1) @ v)


def test_alone_a_query_attends_to_itself() -> None:
    q, v, buckets = inputs(1, 2)
    torch.testing.assert_close(lsh_attention(q, v, buckets), v)
    mask = torch.arange(5) >= torch.tensor([1, 1])[:, None]
    q, v, buckets = inputs(5, 2)
    torch.testing.assert_close(lsh_attention(q, v, buckets, mask)[:, :, 0], v[:, :, 0])


def test_vectors_in_one_direction_share_a_bucket_and_opposite_ones_do_not() -> None:
    x = torch.randn(1, HEADS, 10, HEAD_DIM)
    rotations = torch.randn(HEADS, 2, HEAD_DIM, 4)
    buckets = hash_buckets(x, rotations)
    assert buckets.shape == (1, HEADS, 2, 10)
    assert 0 <= int(buckets.min()) <= int(buckets.max()) < 8
    assert torch.equal(hash_buckets(3 * x, rotations), buckets)
    assert torch.equal(hash_buckets(-x, rotations), (buckets + 4) % 8)


def test_near_neighbours_meet_more_often_than_far_ones() -> None:
    x = torch.randn(1, HEADS, 500, HEAD_DIM)
    rotations = torch.randn(HEADS, 8, HEAD_DIM, 8)
    same = [
        (hash_buckets(x, rotations) == hash_buckets(x + scale * torch.randn_like(x), rotations)).float().mean()
        for scale in (0.1, 0.5, 2.0)
    ]
    assert same[0] > 0.8
    assert same[0] > same[1] > same[2] > 1 / 16


def test_the_layer_has_one_projection_for_queries_and_keys() -> None:
    layer = build_attention("reformer", dim=32, num_heads=4, max_len=64)
    assert layer.qkv_proj.weight.shape == (64, 32)  # type: ignore[union-attr]


def test_training_draws_rotations_anew_and_evaluation_keeps_them() -> None:
    torch.manual_seed(0)
    layer = build_attention("reformer", dim=32, num_heads=4, max_len=256, chunk_size=8)
    x = torch.randn(2, 200, 32)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.manual_seed(1)
    first = layer.train()(x)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x))


def test_dropout_acts_in_training_only() -> None:
    layer = build_attention("reformer", dim=32, num_heads=4, max_len=64, dropout=0.5)
    x = torch.randn(1, 40, 32)  # one chunk: rotations do not matter
    assert torch.equal(layer.eval()(x), layer(x))
    assert not torch.allclose(layer.train()(x), layer(x))


@pytest.mark.parametrize("setting", [{"num_hashes": 0}, {"chunk_size": 0}, {"num_buckets": 3}, {"num_buckets": -2}])
def test_bad_settings_are_named(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        build_attention("reformer", dim=32, num_heads=4, max_len=64, **setting)
