"""Softmax attention with the matrix of weights written out (Vaswani et al. 2017, equation 1)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v, through the full matrix: O(num_queries x num_keys) time and memory.

    q: `[batch, heads, num_queries, head_dim]`; k, v: `[batch, heads, num_keys, head_dim]`;
    padding_mask: `[batch, num_keys]` bool, True = leave the key out; dropout: probability, on the weights.
    Returns `[batch, heads, num_queries, head_dim]`. With every key masked the weights are uniform, not NaN.
    """
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5  # [batch, heads, num_queries, num_keys]
    if padding_mask is not None:
        scores = scores.masked_fill(padding_mask[:, None, None, :], torch.finfo(scores.dtype).min)
    return F.dropout(scores.softmax(dim=-1), dropout, training=dropout > 0.0) @ v
