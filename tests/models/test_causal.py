"""Causal linear attention: chunks, recurrence, gates, carried states."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from models.ops.causal_linear_attention import (
    SMALLEST_PRODUCT,
    LinearState,
    causal_linear_attention,
    causal_linear_attention_naive,
    linear_attention_step,
)
from models.ops.feature_maps import gaussian_features, l2_normalize
from models.ops.linear_attention import linear_attention, linear_attention_naive

BATCH, HEADS, HEAD_DIM = 2, 3, 4


def inputs(seq_len: int, gated: bool, bias: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """phi_q, phi_k, v and log gates, in float64, with gradients."""
    w = torch.randn(HEADS, 16, HEAD_DIM, dtype=torch.float64)
    q, k, v = torch.randn(3, BATCH, HEADS, seq_len, HEAD_DIM, dtype=torch.float64).unbind(0)
    phi_q, phi_k = (gaussian_features(l2_normalize(x), w).detach().requires_grad_() for x in (q, k))
    gate = torch.nn.functional.logsigmoid(torch.randn(BATCH, HEADS, seq_len, dtype=torch.float64) + bias)
    return phi_q, phi_k, v.requires_grad_(), gate.requires_grad_() if gated else None


def random_state(features: int = 32) -> LinearState:
    sums = torch.rand(BATCH, HEADS, HEAD_DIM + 1, features, dtype=torch.float64)
    return LinearState(sums, torch.rand(BATCH, HEADS, dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(
    seq_len=st.integers(1, 40),
    chunk_size=st.sampled_from([1, 3, 8, 64]),
    gated=st.booleans(),
    carried=st.booleans(),
)
def test_chunks_are_the_recurrence(seq_len: int, chunk_size: int, gated: bool, carried: bool) -> None:
    phi_q, phi_k, v, gate = inputs(seq_len, gated)
    state = random_state() if carried else None
    y, after = causal_linear_attention(phi_q, phi_k, v, gate, state, chunk_size)
    expected, expected_after = causal_linear_attention_naive(phi_q, phi_k, v, gate, state)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(after.sums, expected_after.sums)
    torch.testing.assert_close(after.weight, expected_after.weight)
    weights = torch.randn_like(y)
    variables = [x for x in (phi_q, phi_k, v, gate) if x is not None]
    for a, b in zip(
        torch.autograd.grad((y * weights).sum(), variables),
        torch.autograd.grad((expected * weights).sum(), variables),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_the_last_output_is_that_of_bidirectional_attention() -> None:
    phi_q, phi_k, v, _ = inputs(20, gated=False)
    y, state = causal_linear_attention(phi_q, phi_k, v, chunk_size=8)
    torch.testing.assert_close(y[:, :, -1], linear_attention(phi_q, phi_k, v)[:, :, -1])
    torch.testing.assert_close(y[:, :, -1], linear_attention_naive(phi_q, phi_k, v)[:, :, -1])
    assert (state.weight == 20).all()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("cut", [1, 7, 16, 29])
def test_two_segments_with_a_carried_state_are_one(gated: bool, cut: int) -> None:
    phi_q, phi_k, v, gate = inputs(30, gated)
    whole, after = causal_linear_attention(phi_q, phi_k, v, gate, chunk_size=8)

    def part(state: LinearState | None, where: slice) -> tuple[Tensor, LinearState]:
        parts = (x[:, :, where] for x in (phi_q, phi_k, v))
        return causal_linear_attention(*parts, None if gate is None else gate[:, :, where], state, chunk_size=8)

    first, state = part(None, slice(0, cut))
    second, end = part(state, slice(cut, None))
    torch.testing.assert_close(torch.cat((first, second), dim=2), whole)
    torch.testing.assert_close(end.sums, after.sums)


@pytest.mark.parametrize("gated", [False, True])
def test_no_output_depends_on_a_later_token(gated: bool) -> None:
    phi_q, phi_k, v, gate = inputs(25, gated)
    y, _ = causal_linear_attention(phi_q, phi_k, v, gate, chunk_size=8)
    for t in (3, 8, 24):
        changed = [x.detach().clone() for x in (phi_q, phi_k, v)]
        for x in changed:
            x[:, :, t] = torch.rand_like(x[:, :, t])
        other_gate = None
        if gate is not None:
            other_gate = gate.detach().clone()
            other_gate[:, :, t] -= 1.0
        other, _ = causal_linear_attention(*changed, other_gate, chunk_size=8)
        assert torch.equal(other[:, :, :t], y[:, :, :t])
        assert not torch.equal(other[:, :, t], y[:, :, t])


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_in_float64(gated: bool) -> None:
    phi_q, phi_k, v, gate = inputs(7, gated)

    def outputs(*args: Tensor) -> Tensor:
        return causal_linear_attention(*args, chunk_size=3)[0]

    assert torch.autograd.gradcheck(outputs, [x for x in (phi_q, phi_k, v, gate) if x is not None])


@pytest.mark.parametrize("bias", [-30.0, 30.0])
def test_thousands_of_extreme_gates_stay_finite(bias: float) -> None:
    """Gates near 0 forget everything at once, gates near 1 nothing in thousands of tokens."""
    phi_q, phi_k, v, gate = (None if x is None else x.float() for x in inputs(3000, gated=True, bias=bias))
    assert phi_q is not None
    assert phi_k is not None
    assert v is not None
    y, state = causal_linear_attention(phi_q, phi_k, v, gate)
    assert y.isfinite().all()
    assert state.sums.isfinite().all()
    if bias < 0:  # only the newest token counts, so its own value comes out
        kernel = (phi_q * phi_k).sum(-1)
        sure = kernel > 0.2
        torch.testing.assert_close(y[sure], v[sure], atol=1e-3, rtol=1e-3)


class Subnormals(TorchDispatchMode):
    """The largest share of numbers below the normal ones in a factor of a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            for x in args:
                below = (x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)
                self.share = max(self.share, below.double().mean().item())
        return func(*args, **(kwargs or {}))


def test_what_gates_forget_does_not_become_numbers_below_the_normal_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrix products of those take several times as long on some processors."""
    phi_q, phi_k, v, gate = (x.detach().float().requires_grad_() for x in inputs(200, True, bias=-2.0) if x is not None)
    shares, gradients = [], []
    for smallest in (SMALLEST_PRODUCT, 1e-300):
        monkeypatch.setattr("models.ops.causal_linear_attention.SMALLEST_PRODUCT", smallest)
        with Subnormals() as found:
            y, _ = causal_linear_attention(phi_q, phi_k, v, gate)
            gradients.append(torch.autograd.grad(y.sum(), (phi_q, phi_k, v, gate)))
        shares.append(found.share)
    assert shares[0] < 1e-3 < 1e-2 < shares[1]
    for own, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(own, exact)


def test_memory_grows_with_the_length_and_not_with_a_state_per_token() -> None:
    kept: dict[int, int] = {}
    for seq_len in (256, 1024):
        phi_q, phi_k, v, gate = inputs(seq_len, gated=True)
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=sizes: (s.append(x.numel()), x)[1], lambda x: x):
            causal_linear_attention(phi_q, phi_k, v, gate)
        kept[seq_len] = sum(sizes)
        per_token_state = BATCH * HEADS * seq_len * phi_q.shape[-1] * HEAD_DIM
        assert max(sizes) < per_token_state
    assert kept[1024] < 4.5 * kept[256]


def test_a_step_costs_the_same_whatever_came_before() -> None:
    phi_q, phi_k, v, gate = inputs(2, gated=True)
    assert gate is not None
    _, state = causal_linear_attention(phi_q[:, :, :1], phi_k[:, :, :1], v[:, :, :1], gate[:, :, :1])
    y, after = linear_attention_step(phi_q[:, :, 1], phi_k[:, :, 1], v[:, :, 1], state, gate[:, :, 1].exp())
    whole, _ = causal_linear_attention(phi_q, phi_k, v, gate)
    torch.testing.assert_close(y, whole[:, :, 1])
    assert after.sums.shape == state.sums.shape
