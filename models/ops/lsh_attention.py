"""Attention among queries that hash alike (Kitaev et al. 2020, section 2 and appendix A)."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .dropout import drop

# Added to a query's score with itself, so that it attends to itself only where there is nothing else (section 2).
SELF_PENALTY = -1e5


def hash_buckets(x: Tensor, rotations: Tensor) -> Tensor:
    """Angular hashing, argmax over [x R, -x R] (Andoni et al. 2015; Kitaev et al. 2020, section 2).

    x: `[batch, heads, seq_len, head_dim]`; rotations: R, `[heads, rounds, head_dim, num_buckets / 2]`.
    Returns buckets `[batch, heads, rounds, seq_len]`, integers below num_buckets, without gradient.
    """
    heads, rounds, head_dim, half = rotations.shape
    with torch.no_grad():
        every_round = rotations.transpose(1, 2).reshape(heads, head_dim, rounds * half)
        rotated = (x @ every_round).unflatten(-1, (rounds, half))  # [batch, heads, seq_len, rounds, half]
        return torch.cat((rotated, -rotated), dim=-1).argmax(dim=-1).transpose(2, 3)


def lsh_attention(
    q: Tensor,
    v: Tensor,
    buckets: Tensor,
    padding_mask: Tensor | None = None,
    chunk_size: int = 64,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax attention with keys k = q / |q| among neighbours in the order of their buckets.

    In each round of hashing the sequence is sorted by (bucket, position) and cut into chunks; a query sees its own
    chunk and the one before, whatever their buckets, with scores q . k and itself only as a last resort. The first
    chunk has none before it. Padding is sorted last and masked, so it moves no chunk. Rounds are merged by the
    logarithm of their sums of exponentials (appendix A, equation 6), a pair that meets in several rounds counting in
    each. Scores follow the released code, whose keys of unit variance cancel the 1 / sqrt(head_dim).

    q, v: `[batch, heads, seq_len, head_dim]`; buckets: `[batch, heads, rounds, seq_len]` integers;
    padding_mask: `[batch, seq_len]` bool, True = padding; chunk_size: queries in a chunk; dropout: on the weights.
    Returns `[batch, heads, seq_len, head_dim]`, in O(rounds * seq_len * chunk_size) time and memory.
    """
    batch, heads, rounds, seq_len = buckets.shape
    q, v, buckets, hidden = _to_whole_chunks(q, v, buckets, padding_mask, chunk_size)
    padded_len, head_dim = q.shape[2:]
    order = buckets.reshape(batch * heads, rounds, padded_len).argsort(dim=-1, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(padded_len, device=q.device).expand_as(order))

    together = torch.cat((q, v), dim=-1).reshape(batch * heads, padded_len, 2 * head_dim)
    chunks = _take_rows(together, order, rank).unflatten(2, (-1, chunk_size))
    q, v = chunks.split(head_dim, dim=-1)  # each [batch * heads, rounds, chunks, chunk_size, head_dim]
    scores = q @ _with_chunk_before(_unit(q)).transpose(-1, -2)  # [..., chunk_size, 2 * chunk_size]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores + _static_bias(chunks.shape[2], chunk_size, scores)
    if hidden is not None:
        of_heads = hidden.repeat_interleave(heads, dim=0)[:, None, :, None]
        sorted_hidden = _rows(of_heads.squeeze(1), order).unflatten(2, (-1, chunk_size))
        before_too = _with_chunk_before(sorted_hidden).transpose(-1, -2)  # [..., 1, 2 * chunk_size]
        scores = scores.masked_fill(before_too, torch.finfo(scores.dtype).min)

    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    mixed = drop(weights, dropout).to(v.dtype) @ _with_chunk_before(v)
    sums = torch.cat((mixed.to(total.dtype), total, largest), dim=-1).flatten(2, 3).flatten(0, 1)
    sums = _take_rows(sums, rank.flatten(0, 1)[:, None], order.flatten(0, 1)[:, None])
    mixed, total, largest = sums.view(batch, heads, rounds, padded_len, head_dim + 2).split((head_dim, 1, 1), dim=-1)
    share = (largest - largest.detach().amax(dim=2, keepdim=True)).exp()  # of each round, [..., 1]
    y = (share * mixed).sum(2) / (share * total).sum(2)
    return y[:, :, :seq_len].to(v.dtype)


def lsh_attention_naive(
    q: Tensor, v: Tensor, buckets: Tensor, padding_mask: Tensor | None = None, chunk_size: int = 64
) -> Tensor:
    """`lsh_attention` by its definition, through a matrix of all pairs; same arguments, for tests."""
    seq_len = q.shape[2]
    hidden = torch.zeros(len(q), seq_len, dtype=torch.bool) if padding_mask is None else padding_mask
    place = buckets.masked_fill(hidden[:, None, None], 1 << 40).argsort(dim=-1, stable=True).argsort(dim=-1)
    chunk = place // chunk_size
    ahead = chunk.unsqueeze(-1) - chunk.unsqueeze(-2)  # [batch, heads, rounds, queries, keys]
    meetings = ((ahead == 0) | (ahead == 1)).sum(2).to(q.dtype)
    scores = q @ (q / q.norm(dim=-1, keepdim=True).clamp_min(1e-6)).transpose(-1, -2)
    scores = scores + SELF_PENALTY * torch.eye(seq_len, dtype=q.dtype) + meetings.clamp_min(1).log()
    scores = scores.masked_fill(hidden[:, None, None] | (meetings == 0), torch.finfo(q.dtype).min)
    return scores.softmax(dim=-1) @ v


def _to_whole_chunks(
    q: Tensor, v: Tensor, buckets: Tensor, padding_mask: Tensor | None, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Lengthen to a multiple of chunk_size by padding, and give all padding the last bucket."""
    missing = -q.shape[2] % chunk_size
    if missing:
        if padding_mask is None:
            padding_mask = torch.zeros(len(q), q.shape[2], dtype=torch.bool, device=q.device)
        padding_mask = F.pad(padding_mask, (0, missing), value=True)
        q, v, buckets = F.pad(q, (0, 0, 0, missing)), F.pad(v, (0, 0, 0, missing)), F.pad(buckets, (0, missing))
    if padding_mask is not None:
        buckets = buckets.masked_fill(padding_mask[:, None, None], torch.iinfo(buckets.dtype).max)
    return q, v, buckets, padding_mask


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-6)


def _with_chunk_before(x: Tensor) -> Tensor:
    """`[..., chunks, chunk_size, width]` -> `[..., chunks, 2 * chunk_size, width]`; zeros before the first chunk."""
    return torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[..., :-1, :, :], x), dim=-2)


def _static_bias(num_chunks: int, chunk_size: int, like: Tensor) -> Tensor:
    """What is known before sorting: nothing lies before the first chunk, and a query meets itself on a diagonal."""
    bias = torch.zeros(num_chunks, chunk_size, 2 * chunk_size, dtype=like.dtype, device=like.device)
    bias[0, :, :chunk_size].fill_(torch.finfo(like.dtype).min)  # = would compile to a constant in host memory
    bias.diagonal(offset=chunk_size, dim1=1, dim2=2).fill_(SELF_PENALTY)
    return bias


def _rows(x: Tensor, order: Tensor) -> Tensor:
    """Rows of each group of x, `[groups, rows, width]`, in `order`, `[groups, rounds, rows]`."""
    groups, num_rows, width = x.shape
    index = order + num_rows * torch.arange(groups, device=x.device)[:, None, None]
    return x.reshape(groups * num_rows, width).index_select(0, index.flatten()).view(*order.shape, width)


class _TakeRows(torch.autograd.Function):
    """`_rows` for permutations: backward reads by the inverse, where autograd would add row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, rank: Tensor) -> Tensor:
        ctx.save_for_backward(rank)
        return _rows(x, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rank,) = ctx.saved_tensors
        back = _rows(grads[0].flatten(0, 1), rank.flatten(0, 1)[:, None])
        return back.view_as(grads[0]).sum(1), None, None


def _take_rows(x: Tensor, order: Tensor, rank: Tensor) -> Tensor:
    """x in `order`, one permutation of its rows per round, whose inverses are `rank`; see `_rows`."""
    return _TakeRows.apply(x, order, rank)
