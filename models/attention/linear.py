"""The linear transformer, RFA's own baseline."""

from torch import Tensor

from ..ops.feature_maps import elu_features
from ..ops.linear_attention import linear_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("linear")
class LinearAttention(MultiHeadAttention):
    """Attention with elu + 1 features, O(seq_len) time and memory (Katharopoulos et al. 2020)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        # Positive features cannot cancel in the denominator; the guard is only against dividing by zero.
        return linear_attention(elu_features(q), elu_features(k), v, padding_mask, eps=1e-6)
