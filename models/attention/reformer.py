"""Reformer: softmax attention among queries that hash alike."""

import torch
from torch import Tensor

from ..ops.lsh_attention import hash_buckets, lsh_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("reformer")
class ReformerAttention(MultiHeadAttention):
    """Locality-sensitive-hashing attention with one projection for queries and keys (Kitaev et al. 2020, section 2).

    Training draws new rotations at every forward pass by torch's seeded generator; evaluation always takes those of
    the state dict. Bidirectional, as in the Long Range Arena. With one chunk for all it is softmax attention over
    q . k / |k| where a query does not see itself.

    num_hashes: rounds of hashing; chunk_size: queries in a chunk, each seeing its chunk and the one before;
    num_buckets: an even number, 0 for max_len / chunk_size rounded up to even. Raises ValueError for less than one
    round or query, or an odd num_buckets.
    """

    shares_query_key = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        num_hashes: int = 2,
        chunk_size: int = 64,
        num_buckets: int = 0,
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        for name, value in (("num_hashes", num_hashes), ("chunk_size", chunk_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        if num_buckets < 0 or num_buckets % 2:
            raise ValueError(f"num_buckets is {num_buckets}; expected an even number, or 0 to derive it from max_len")
        self.chunk_size = chunk_size
        half = num_buckets // 2 or -(-max_len // (2 * chunk_size))
        self.rotations: Tensor
        self.register_buffer("rotations", torch.randn(num_heads, num_hashes, self.head_dim, half))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        rotations = torch.randn_like(self.rotations) if self.training else self.rotations
        buckets = hash_buckets(q, rotations)
        return lsh_attention(q, v, buckets, padding_mask, self.chunk_size, self.active_dropout)
