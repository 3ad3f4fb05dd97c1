"""The linear transformer, RFA's own baseline."""

import torch
from torch import Tensor

from ..ops.causal_linear_attention import LinearState, causal_linear_attention
from ..ops.decoding_step import decodes_fused, decoding_step
from ..ops.feature_maps import elu_features
from ..ops.linear_attention import linear_attention, read_summary, summarize_keys
from ..registry import register_attention
from .base import MultiHeadAttention

# Positive features cannot cancel in the denominator; the guard is only against dividing by zero.
EPSILON = 1e-6


@register_attention("linear")
class LinearAttention(MultiHeadAttention):
    """Attention with elu + 1 features, O(seq_len) time and memory (Katharopoulos et al. 2020)."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return linear_attention(elu_features(q), elu_features(k), v, padding_mask, EPSILON)

    def attend_causal(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: LinearState | None, keep_state: bool
    ) -> tuple[Tensor, LinearState | None]:
        if decodes_fused(q, self.head_dim):
            y, state = decoding_step(q, k, v, state, "elu", EPSILON)
            return y, state if keep_state else None
        phi_q, phi_k = elu_features(q), elu_features(k)
        if q.shape[2] == 1:  # compiled decoding would make them anew for every row of the state, were they not kept
            phi_q, phi_k = torch.cat((phi_q, phi_k)).chunk(2)
        y, state = causal_linear_attention(phi_q, phi_k, v, state=state, eps=EPSILON)
        return y, state if keep_state else None

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return summarize_keys(elu_features(k), v, padding_mask)

    def read(self, q: Tensor, memory: Tensor) -> Tensor:
        return read_summary(elu_features(q), memory, EPSILON).to(q.dtype)
