"""Softmax attention, the explicit matrix that papers compare with."""

from torch import Tensor

from ..ops.softmax_attention import KeyValues, Memory, append_keys, softmax_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("softmax")
class SoftmaxAttention(MultiHeadAttention):
    """Scaled dot-product attention, O(seq_len^2) time and memory (Vaswani et al. 2017).

    Causal with a state, it keeps the keys and values of all tokens so far, at most max_len.
    """

    state_grows = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return softmax_attention(q, k, v, padding_mask, self.active_dropout)

    def attend_causal(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: KeyValues | None, keep_state: bool
    ) -> tuple[Tensor, KeyValues | None]:
        before = state.length if state else 0
        if keep_state or state is not None:
            state = append_keys(state, k, v, self.max_len)
            k, v = state.k[:, :, : state.length], state.v[:, :, : state.length]
        return self.attend_back(q, k, v, before), state if keep_state else None

    def attend_back(self, q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
        """Causal attention of q, which follows `before` of the keys."""
        return softmax_attention(q, k, v, None, self.active_dropout, before)

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Memory:
        return Memory(k, v, padding_mask)

    def read(self, q: Tensor, memory: Memory) -> Tensor:
        return self.attend(q, *memory)
