"""Softmax attention, the explicit matrix that papers compare with."""

from torch import Tensor

from ..ops.softmax_attention import softmax_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("softmax")
class SoftmaxAttention(MultiHeadAttention):
    """Scaled dot-product attention, O(seq_len^2) time and memory (Vaswani et al. 2017)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return softmax_attention(q, k, v, padding_mask, self.active_dropout)
