"""Softmax attention by torch's fused kernel, what a user would pick today."""

from torch import Tensor
from torch.nn import functional as F

from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("sdpa")
class ScaledDotProductAttention(MultiHeadAttention):
    """`softmax` through torch.nn.functional.scaled_dot_product_attention (Dao et al. 2022 where it dispatches there).

    On a CPU torch has no fused kernel with dropout: attention dropout above 0 falls back to the full matrix.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        keep = None
        if padding_mask is not None:
            # A row without any key would be 0/0; let it see all of them, since nothing reads it.
            keep = (~padding_mask | padding_mask.all(dim=-1, keepdim=True))[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=self.active_dropout)
