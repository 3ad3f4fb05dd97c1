"""Linformer: keys and values projected along the sequence to a fixed length."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.softmax_attention import softmax_attention
from ..registry import register_attention
from .base import MultiHeadAttention, check_mask


@register_attention("linformer")
class LinformerAttention(MultiHeadAttention):
    """Softmax over E k and F v, which are k rows long whatever the input, O(seq_len) (Wang et al. 2020, equation 7).

    Sequences shorter than max_len use the first columns of E and F. Padded keys and values are set to zero before
    the projection, so that they add nothing to any row; the original ignores the mask.

    k: rows of E and F, at most max_len are used; sharing: `none` (E and F apart), `key-value` (one matrix for both)
    or `layerwise` (that one for all layers of an encoder too); in all of them the heads of a layer share, which the
    paper calls headwise. Raises ValueError for k below 1.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        k: int = 256,
        sharing: Literal["none", "key-value", "layerwise"] = "none",
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        if k < 1:
            raise ValueError(f"k is {k}; expected at least 1")
        self.sharing = sharing
        # The entries' variance of 1/k is that of the paper's Johnson-Lindenstrauss matrices (section 4).
        rows = min(k, max_len)
        self.key_projection = nn.Parameter(torch.randn(rows, max_len) * rows**-0.5)
        if sharing == "none":
            self.value_projection = nn.Parameter(torch.randn(rows, max_len) * rows**-0.5)
        else:
            self.value_projection = self.key_projection

    def share_with(self, first: MultiHeadAttention) -> None:
        """Under layerwise sharing, take the first layer's projection."""
        if self.sharing == "layerwise" and isinstance(first, LinformerAttention):
            self.key_projection = self.value_projection = first.key_projection

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x: `[batch, seq_len, dim]`; padding_mask: `[batch, seq_len]` bool, True = padding. Returns x's shape.

        E (x W + b) is computed as (E x) W + (E 1) b: the projections of keys and values then see k rows, not seq_len.
        Raises ValueError for a sequence over max_len.
        """
        check_mask(padding_mask, x)
        batch, seq_len, _ = x.shape
        if seq_len > self.max_len:
            raise ValueError(f"sequence of {seq_len} tokens; this Linformer takes at most {self.max_len}")
        real = x if padding_mask is None else x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
        ones = x.new_ones(batch, seq_len, 1) if padding_mask is None else (~padding_mask).unsqueeze(-1).to(x.dtype)
        mixed = []
        for number, projection in enumerate((self.key_projection, self.value_projection), 1):
            weight, bias = self._slice(number, number + 1)
            along = projection[:, :seq_len]  # [rows, seq_len]
            rows = F.linear(along @ real, weight)  # [batch, rows, dim]
            mixed.append(self._heads(rows if bias is None else rows + (along @ ones) * bias))
        k, v = mixed
        q = self._heads(F.linear(x, *self._slice(0, 1)))
        return self._join(self.attend(q, k, v, None), q)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Softmax attention; k and v are `[batch, heads, rows, head_dim]`, without padding."""
        return softmax_attention(q, k, v, padding_mask, self.active_dropout)
