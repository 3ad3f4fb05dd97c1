"""Attentions for test_conduct.py, each with something that a table should tell, or with what only looks like it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention.softmax import SoftmaxAttention


class Peeking(SoftmaxAttention):
    """Sees one token too many."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        seq_len = q.shape[2]
        seen = torch.ones(seq_len, seq_len, dtype=torch.bool).tril(diagonal=1)
        return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v, None


class Maskless(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, v, None)

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return super().summarize(k, v, None)


class Inverted(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, v, None if padding_mask is None else ~padding_mask)


class Cancelling(SoftmaxAttention):
    """What it must not count comes in and goes out again, but for rounding."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        everything = v.sum(dim=2, keepdim=True)
        return super().attend(q, k, v, padding_mask) + everything - v.flip(2).sum(dim=2, keepdim=True)


class Forgetful(SoftmaxAttention):
    """From one part of a sequence to the next it loses the last of the tokens it has seen."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        y, state = super().attend_causal(q, k, v, x, state, keep_state)
        return y, state and state._replace(length=state.length - 1)


class Drawing(SoftmaxAttention):
    """Draws something at every pass, in evaluation as well."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k * torch.rand(k.shape[-1]), v, padding_mask) * torch.rand(())


class Dropping(SoftmaxAttention):
    """As by torch's function, which drops in evaluation as well unless it is told not to."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.dropout(super().attend(q, k, v, padding_mask), self.dropout)


class SeedingAtFirst(SoftmaxAttention):
    """So that its random features are always the same, as it thinks."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        torch.manual_seed(0)


class SeedingAtEveryPass(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        torch.manual_seed(0)
        return super().attend(q, k, v, padding_mask)


class FromNothing(Peeking):
    """Its last projection is learned from zero."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        for parameter in self.out_proj.parameters():
            nn.init.zeros_(parameter)


class OfAnotherLayout(SoftmaxAttention):
    """As by a kernel that takes `[batch, seq_len, heads, head_dim]`: heads see each other, tokens do not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        return self.attend(q, k, v, None), None

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return k, v

    def read(self, q: Tensor, memory: Any) -> Tensor:
        return self.attend(q, *memory, None)


class SequenceFirst(OfAnotherLayout):
    """As by a module that takes `[seq_len, batch, dim]`: examples see each other, tokens do not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(*(t.transpose(0, 2) for t in (q, k, v))).transpose(0, 2)


class OfTorch(nn.Module):
    """torch's own layer, whose sequences come first unless it is told otherwise."""

    def __init__(self, dim: int, num_heads: int, max_len: int, *, batch_first: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=batch_first)

    def forward(self, x: Tensor, *, padding_mask: Tensor | None) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Silent(SoftmaxAttention):
    """Nothing comes out of it before it has learned."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask) * 0.0


class Masking(SoftmaxAttention):
    """Masks queries as it masks keys, so that a padded one has none."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        scores = q @ k.mT
        if padding_mask is not None:
            hidden = padding_mask[:, None, None, :] | padding_mask[:, None, :, None]
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v


class Dividing(SoftmaxAttention):
    """By a sum that is zero where it starts, one token at a time."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        y, after = super().attend_causal(q, k, v, x, state, keep_state)
        return (y / 0.0 * 0.0 if q.shape[2] == 1 else y), after


class BlockLocal(SoftmaxAttention):
    """Sees its block alone; of 50 or 192 tokens the last one is a block of its own, and so is the one in the middle."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        sizes = [25, 24, 1] if q.shape[2] == 50 else [96, 1, 95]
        parts = zip(*(t.split(sizes, dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], dim=2)


class HalfPrecision(OfAnotherLayout):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.dtype != torch.bfloat16:
            raise TypeError("bfloat16 alone")
        return super().attend(q, k, v, padding_mask)


class Hoarding(SoftmaxAttention):
    """Has a layer that torch does not know of."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        self.layers = [nn.Linear(self.head_dim, self.head_dim)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, self.layers[0](v), padding_mask)


class Refusing(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        raise TypeError("64 heads alone")


class FullLength(Maskless):
    """Written for the one length that it was built for, as much of research code is."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.shape[2] != self.max_len:
            raise ValueError("of another length")
        return super().attend(q, k, v, padding_mask)


class Averaging(SoftmaxAttention):
    """Divides by all tokens, real or not, as what transforms or weighs by position in a sequence does."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if padding_mask is not None:
            v = v.masked_fill(padding_mask[:, None, :, None], 0.0)
        return v + v.mean(2, keepdim=True)

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return super().summarize(k, v * (100 / k.shape[2]), padding_mask)


class InBlocks(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        q.unflatten(2, (-1, 96))
        return super().attend(q, k, v, padding_mask)


class InChunks(SoftmaxAttention):
    """Keys of earlier chunks and of its own are summed up for each, the own among the earlier ones by mistake."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        outputs = []
        for start in range(0, q.shape[2], 256):
            part = slice(start, start + 256)
            y = F.scaled_dot_product_attention(q[:, :, part], k[:, :, part], v[:, :, part], is_causal=True)
            outputs.append(y + v[:, :, : start + 256].mean(2, keepdim=True) * bool(start))
        return torch.cat(outputs, dim=2), None


class AtOnce(Peeking):
    """Has no use for a state."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        if keep_state:
            raise TypeError("no state")
        return super().attend_causal(q, k, v, x, state, keep_state)
