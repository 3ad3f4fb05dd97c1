"""Attention through feature maps, linear in the sequence length (Peng et al. 2021, equation 5)."""

import torch
from torch import Tensor
from torch.nn import functional as F

# Guard of the denominator phi(q) . z, in units of one kernel value. Random Fourier features estimate the kernel
# with noise, so the sum over keys can come near zero or below it. With unit vectors and sigma = 1 the exact kernel
# is at least exp(-2) = 0.135, even for a single key opposite the query: 0.1 only ever cuts off estimation error.
EPSILON = 0.1


def guard_denominator(denominator: Tensor, eps: float = EPSILON) -> Tensor:
    """`max(|denominator|, eps)`, as the authors' encoder and cross attention do; no gradient where eps wins."""
    return denominator.abs().clamp_min(eps)


def linear_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, padding_mask: Tensor | None = None, eps: float = EPSILON
) -> Tensor:
    """Bidirectional attention with weights phi(q_t) . phi(k_i), in O(queries + keys) time and memory.

    out_t = S^T phi(q_t) / (phi(q_t) . z) with S and z as `summarize_keys` has them.

    phi_q: `[batch, heads, num_queries, features]`; phi_k: `[batch, heads, num_keys, features]`;
    v: `[batch, heads, num_keys, head_dim]`; padding_mask: `[batch, num_keys]` bool, True = leave the key out.
    Returns `[batch, heads, num_queries, head_dim]` in the dtype of v.
    """
    return read_summary(phi_q, summarize_keys(phi_k, v, padding_mask), eps).to(v.dtype)


def summarize_keys(phi_k: Tensor, v: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """S = sum_i phi(k_i) (x) v_i and, as its last column, z = sum_i phi(k_i): all that queries need of the keys.

    Summed in float32 whatever the inputs are, because thousands of bfloat16 terms would lose the small ones. In cross
    attention it is computed once for all queries. Arguments as for `linear_attention`; returns
    `[batch, heads, features, head_dim + 1]`.
    """
    dtype = torch.promote_types(v.dtype, torch.float32)
    with torch.autocast(v.device.type, enabled=False):
        # A column of ones turns z into one more column of S: a single product yields both, and zeroing a padded
        # row of it removes that key from both without touching the wider features.
        values = F.pad(v.to(dtype), (0, 1), value=1.0)  # [batch, heads, num_keys, head_dim + 1]
        if padding_mask is not None:
            values = values.masked_fill(padding_mask[:, None, :, None], 0.0)
        return phi_k.to(dtype).transpose(-1, -2) @ values


def read_summary(phi_q: Tensor, summary: Tensor, eps: float = EPSILON) -> Tensor:
    """The outputs of queries phi_q, `[batch, heads, num_queries, features]`, from `summarize_keys`; float32."""
    with torch.autocast(phi_q.device.type, enabled=False):
        out = phi_q.to(summary.dtype) @ summary
        return out[..., :-1] / guard_denominator(out[..., -1:], eps)


def linear_attention_naive(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, padding_mask: Tensor | None = None, eps: float = EPSILON
) -> Tensor:
    """`linear_attention` by the plain O(queries x keys) formula; same arguments, for tests."""
    weights = phi_q @ phi_k.transpose(-1, -2)  # [batch, heads, num_queries, num_keys]
    if padding_mask is not None:
        weights = weights.masked_fill(padding_mask[:, None, None, :], 0.0)
    return weights @ v / guard_denominator(weights.sum(-1, keepdim=True), eps)
