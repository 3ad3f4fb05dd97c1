"""Softmax attention by torch's fused kernel, what a user would pick today."""

from torch import Tensor
from torch.nn import functional as F

from ..ops.softmax_attention import causal_mask
from ..registry import register_attention
from .softmax import SoftmaxAttention


@register_attention("sdpa")
class ScaledDotProductAttention(SoftmaxAttention):
    """`softmax` through torch.nn.functional.scaled_dot_product_attention (Dao et al. 2022 where it dispatches there).

    Flash attention takes no padding mask: with one torch falls back to its memory-efficient kernel on a GPU. On a CPU
    it has no fused kernel with dropout: attention dropout above 0 falls back to the full matrix.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        keep = None
        if padding_mask is not None:
            # A row without any key would be 0/0; let it see all of them, since nothing reads it.
            keep = (~padding_mask | padding_mask.all(dim=-1, keepdim=True))[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=self.active_dropout)

    def attend_back(self, q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
        alone = q.shape[2] == 1  # the newest token sees every key
        square = before == 0
        keep = None if alone or square else causal_mask(q.shape[2], k.shape[2], before, q.device)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=keep, dropout_p=self.active_dropout, is_causal=square and not alone
        )
