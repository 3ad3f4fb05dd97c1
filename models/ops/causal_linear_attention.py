"""Causal attention through feature maps: in parallel over chunks, and token by token (Peng et al. 2021, section 3)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .linear_attention import EPSILON

# Products of gates below this are 0. What they let through of the tokens before is no digit of a state that has been
# filled anew meanwhile, and some processors take many times as long for the subnormal numbers that come of them.
SMALLEST_PRODUCT = 1e-18


class LinearState(NamedTuple):
    """All that a causal linear attention keeps of the tokens before, whatever their number.

    sums: S_t transposed and as its last row z_t, `[batch, heads, head_dim + 1, features]`: so a token's update and its
    reading run along memory, and compile into one pass; weight: what the weights of the
    keys in it add up to, `[batch, heads]`: their number, or under a gate at most 1. Both float32.
    """

    sums: Tensor
    weight: Tensor


def empty_state(phi_k: Tensor, v: Tensor) -> LinearState:
    """The state before the first token, for features like phi_k and values like v, `[batch, heads, ...]`."""
    batch, heads = phi_k.shape[:2]
    dtype = torch.promote_types(v.dtype, torch.float32)
    sums = torch.zeros(batch, heads, v.shape[-1] + 1, phi_k.shape[-1], dtype=dtype, device=v.device)
    return LinearState(sums, sums.new_zeros(batch, heads))


def causal_linear_attention(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    log_gate: Tensor | None = None,
    state: LinearState | None = None,
    chunk_size: int = 64,
    eps: float = EPSILON,
) -> tuple[Tensor, LinearState]:
    """out_t = S_t^T phi(q_t) / (phi(q_t) . z_t) with S_t = S_{t-1} + phi(k_t) (x) v_t and z_t = z_{t-1} + phi(k_t).

    With a gate g_t (RFA-Gate, equation 7): S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) (x) v_t, z_t likewise. Inside a
    chunk a small masked matrix of weights, between chunks the running state: O(seq_len) time and memory, and no
    S_t but one per chunk is ever there. Products of gates are sums of logarithms, so that long stretches neither
    underflow nor overflow.

    The denominator is kept above eps, as the authors' causal code does it, here in units of the keys' total weight
    where that is below 1: under a gate the first tokens weigh next to nothing.

    phi_q, phi_k: `[batch, heads, seq_len, features]`; v: `[batch, heads, seq_len, head_dim]`; log_gate: log g_t,
    `[batch, heads, seq_len]`; state: from the segment before; chunk_size: the most tokens of a chunk, which changes
    time and memory, not the result.
    Returns the outputs, `[batch, heads, seq_len, head_dim]` in the dtype of v, and the state after the last token.
    """
    state = state or empty_state(phi_k, v)
    seq_len, dtype = v.shape[2], state.sums.dtype
    if seq_len == 1:
        gate = None if log_gate is None else log_gate[:, :, 0].exp()
        y, state = linear_attention_step(phi_q[:, :, 0], phi_k[:, :, 0], v[:, :, 0], state, gate, eps)
        return y.unsqueeze(2), state
    sums, weight = state
    chunk_size = min(chunk_size, seq_len)
    with torch.autocast(v.device.type, enabled=False):
        values = F.pad(v.to(dtype), (0, 1), value=1.0)
        if log_gate is not None:
            log_gate = log_gate.to(dtype)
            values = values * -log_gate.expm1().unsqueeze(-1)  # 1 - g_t
        q, k, values = (_chunks(x.to(dtype), chunk_size) for x in (phi_q, phi_k, values))  # [..., chunks, size, width]
        within, to_end = q @ k.transpose(-1, -2), values
        if log_gate is None:
            within, decay, over = within.tril(), None, None
        else:
            decay = _chunks(log_gate.unsqueeze(-1), chunk_size).cumsum(-2)  # log of the product of gates so far
            future = torch.ones(chunk_size, chunk_size, dtype=torch.bool, device=v.device).triu(1)
            within = within * _product((decay - decay.transpose(-1, -2)).masked_fill(future, -torch.inf))
            to_end = values * _product(decay[..., -1:, :] - decay)
            over = _product(decay[..., -1:, :])  # the whole chunk's
        updates = to_end.transpose(-1, -2) @ k  # [batch, heads, chunks, head_dim + 1, features]
        starts = []
        for chunk, update in enumerate(updates.unbind(2)):
            starts.append(sums)
            sums = (sums if over is None else sums * over[:, :, chunk]) + update
        before = q @ torch.stack(starts, dim=2).transpose(-1, -2)  # what the chunks before have added up to
        if decay is not None:
            before = before * _product(decay)
        out = (within @ values + before).flatten(2, 3)[:, :, :seq_len]
        weights = _total_weights(weight, log_gate, seq_len)  # [batch, heads, seq_len]
        floor = eps * weights.clamp_max(1.0).unsqueeze(-1)
        y = out[..., :-1] / torch.maximum(out[..., -1:], floor)
    return y.to(v.dtype), LinearState(sums, weights[..., -1])


def causal_linear_attention_naive(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    log_gate: Tensor | None = None,
    state: LinearState | None = None,
    eps: float = EPSILON,
) -> tuple[Tensor, LinearState]:
    """`causal_linear_attention` by the recurrence itself, for tests; same arguments."""
    sums, weight = state or empty_state(phi_k, v)
    outputs = []
    for t in range(v.shape[2]):
        g = None if log_gate is None else log_gate[:, :, t].exp()
        y, (sums, weight) = linear_attention_step(phi_q[:, :, t], phi_k[:, :, t], v[:, :, t], (sums, weight), g, eps)
        outputs.append(y)
    return torch.stack(outputs, dim=2), LinearState(sums, weight)


def linear_attention_step(
    phi_q: Tensor,
    phi_k: Tensor,
    v: Tensor,
    state: LinearState | tuple[Tensor, Tensor],
    gate: Tensor | None = None,
    eps: float = EPSILON,
) -> tuple[Tensor, LinearState]:
    """One token: the state is updated with it, then read; the same time and memory however many came before.

    phi_q, phi_k: `[batch, heads, features]`; v: `[batch, heads, head_dim]`; gate: g_t, `[batch, heads]`.
    Returns the output, `[batch, heads, head_dim]`, and the new state; without gradients the old one is overwritten,
    which spares a copy of it per token.
    """
    sums, weight = state
    if torch.is_grad_enabled():
        sums, weight = sums.clone(), weight.clone()
    values = F.pad(v.to(sums.dtype), (0, 1), value=1.0)
    if gate is None:
        weight = weight.add_(1.0)
    else:
        g = gate.to(sums.dtype)
        values = values * (1.0 - g).unsqueeze(-1)
        weight = weight.mul_(g).add_(1.0 - g)
        sums = sums.mul_(g[..., None, None])
    sums = sums.addcmul_(phi_k.to(sums.dtype).unsqueeze(-2), values.unsqueeze(-1))
    phi_q = phi_q.to(sums.dtype).unsqueeze(-2)
    # Compiled, a sum of products is read in the pass that updates; a matmul would read the state a second time.
    summed = (phi_q * sums).sum(-1) if torch.compiler.is_compiling() else (phi_q @ sums.transpose(-1, -2)).squeeze(-2)
    floor = eps * weight.clamp_max(1.0).unsqueeze(-1)
    return (summed[..., :-1] / torch.maximum(summed[..., -1:], floor)).to(v.dtype), LinearState(sums, weight)


def _product(log_gates: Tensor) -> Tensor:
    """The product of gates from the sum of their logarithms; 0 where it is below SMALLEST_PRODUCT."""
    return F.threshold(log_gates, math.log(SMALLEST_PRODUCT), -torch.inf).exp()


def _chunks(x: Tensor, size: int) -> Tensor:
    """`[batch, heads, seq_len, width]` -> `[batch, heads, chunks, size, width]`, zeros behind the end."""
    missing = -x.shape[2] % size
    if missing:  # padding by nothing would be a copy
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(2, (-1, size))


def _total_weights(before: Tensor, log_gate: Tensor | None, seq_len: int) -> Tensor:
    """The keys' total weight after each token, from that `before` the first; `[batch, heads, seq_len]`."""
    if log_gate is None:
        return before.unsqueeze(-1) + torch.arange(1, seq_len + 1, dtype=before.dtype, device=before.device)
    product = log_gate.cumsum(-1)
    return before.unsqueeze(-1) * product.exp() - product.expm1()
