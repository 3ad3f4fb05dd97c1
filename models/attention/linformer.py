"""Linformer: keys and values projected along the sequence to a fixed length."""

from typing import Literal

import torch
from torch import Tensor, nn

from ..ops.softmax_attention import softmax_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("linformer")
class LinformerAttention(MultiHeadAttention):
    """Softmax over E k and F v, which are k rows long whatever the input, O(seq_len) (Wang et al. 2020, equation 7).

    Sequences shorter than max_len use the first columns of E and F. Padded keys and values are set to zero before
    the projection, so that they add nothing to any row; the original ignores the mask.

    k: rows of E and F, at most max_len are used; sharing: `none` (E and F apart) or `key-value` (one matrix for
    both); E and F are shared by the heads of a layer. Raises ValueError for k below 1.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        k: int = 256,
        sharing: Literal["none", "key-value"] = "none",
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        if k < 1:
            raise ValueError(f"k is {k}; expected at least 1")
        rows = min(k, max_len)
        # The paper's initialisation: entries of variance 1/k (section 4).
        self.key_projection = nn.Parameter(torch.randn(rows, max_len) * rows**-0.5)
        self.value_projection = (
            self.key_projection if sharing == "key-value" else nn.Parameter(torch.randn(rows, max_len) * rows**-0.5)
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if padding_mask is not None:
            padded = padding_mask[:, None, :, None]
            k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
        seq_len = k.shape[2]
        keys = self.key_projection[:, :seq_len] @ k  # [batch, heads, rows, head_dim]
        values = self.value_projection[:, :seq_len] @ v
        return softmax_attention(q, keys, values, dropout=self.active_dropout)
