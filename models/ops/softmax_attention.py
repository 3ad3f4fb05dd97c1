"""Softmax attention with the matrix of weights written out (Vaswani et al. 2017, equation 1), and its cache."""

from typing import NamedTuple

import torch
from torch import Tensor

from .dropout import drop


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
    before: int | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v, through the full matrix: O(num_queries x num_keys) time and memory.

    q: `[batch, heads, num_queries, head_dim]`; k, v: `[batch, heads, num_keys, head_dim]`;
    padding_mask: `[batch, num_keys]` bool, True = leave the key out; dropout: probability, on the weights;
    before: causal attention, where query t sees the first `before` + t + 1 keys.
    Returns `[batch, heads, num_queries, head_dim]`. With every key masked the weights are uniform, in float16 finite.
    """
    # Scaled queries: to scale the scores is another pass over the matrix, and one more in backward.
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # [batch, heads, num_queries, num_keys]
    if padding_mask is not None:
        # Added to the scores, a mask passes over the matrix once; filled in, backward has to pass over it as well.
        # Half of the least number, lest float16 add a score to it and arrive at -inf.
        scores = scores + padding_mask[:, None, None, :].to(scores.dtype) * (torch.finfo(scores.dtype).min / 2)
    if before is not None:
        unseen = ~causal_mask(q.shape[2], k.shape[2], before, q.device)
        scores = scores.masked_fill(unseen, torch.finfo(scores.dtype).min)
    return drop(scores.softmax(dim=-1), dropout) @ v


def causal_mask(num_queries: int, num_keys: int, before: int, device: torch.device) -> Tensor:
    """`[num_queries, num_keys]` bool, True where query t may see the key: the first `before` + t + 1."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(before)


class KeyValues(NamedTuple):
    """Keys and values so far in tensors made once: k, v `[batch, heads, capacity, head_dim]`, `length` of them used."""

    k: Tensor
    v: Tensor
    length: int


class Memory(NamedTuple):
    """Keys and values of cross attention, `[batch, heads, num_keys, head_dim]`, and their padding mask."""

    k: Tensor
    v: Tensor
    padding_mask: Tensor | None


def append_keys(state: KeyValues | None, k: Tensor, v: Tensor, capacity: int) -> KeyValues:
    """`state` with k and v, `[batch, heads, new, head_dim]`, written in place behind what it holds.

    Raises ValueError for more than `capacity` tokens in all.
    """
    if state is None:
        shape = (*k.shape[:2], capacity, k.shape[3])
        state = KeyValues(k.new_empty(shape), v.new_empty(shape), 0)
    end = state.length + k.shape[2]
    if end > capacity:
        raise ValueError(f"{end} tokens; this layer was built for at most {capacity}")
    state.k[:, :, state.length : end] = k
    state.v[:, :, state.length : end] = v
    return KeyValues(state.k, state.v, end)
