"""From hidden states to class scores: pooling and classifiers."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from .encoder import Encoder, build_encoder


def mean_pool(hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Average over the real positions only; an empty sequence gives zeros.

    hidden: `[batch, seq_len, dim]`; padding_mask: `[batch, seq_len]` bool, True = padding. Returns `[batch, dim]`.
    """
    if padding_mask is None:
        return hidden.mean(dim=1)
    kept = (~padding_mask)[:, :, None]
    # Padded rows hold no meaning, possibly not even finite values: replace them, do not multiply them by zero.
    return hidden.where(kept, hidden.new_zeros(())).sum(dim=1) / kept.sum(dim=1).clamp_min(1)


def _mlp(width: int, hidden: int, num_classes: int, layers: int) -> nn.Sequential:
    """width -> hidden -> ReLU -> classes; with three layers another, half as wide, before the classes."""
    narrow = [nn.Linear(hidden, hidden // 2), nn.ReLU()] if layers == 3 else []
    last = hidden // 2 if layers == 3 else hidden
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), *narrow, nn.Linear(last, num_classes))


class Classifier(nn.Module):
    """One tower: encoder, pooling, then dim -> mlp_dim -> ReLU -> classes (Tay et al. 2021's classifier head)."""

    def __init__(
        self, encoder: Encoder, num_classes: int, mlp_dim: int, pooling: Literal["mean", "cls"], head_layers: int = 2
    ) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.head = _mlp(self.head_width(encoder.dim), mlp_dim, num_classes, head_layers)

    @staticmethod
    def head_width(dim: int) -> int:
        """Width of what the head reads."""
        return dim

    def pooled(self, tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
        """One vector per sequence, `[batch, dim]`."""
        hidden, mask = self.encoder(tokens, padding_mask)
        return hidden[:, 0] if self.pooling == "cls" else mean_pool(hidden, mask)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """tokens: `[batch, seq_len]`; padding_mask: `[batch, seq_len]` bool. Returns logits `[batch, classes]`."""
        return self.head(self.pooled(tokens, padding_mask))


class PairClassifier(Classifier):
    """Two towers that share one encoder; the head reads [a, b, a * b, a - b] (Tay et al. 2021, section 2.2.3)."""

    @staticmethod
    def head_width(dim: int) -> int:
        return 4 * dim

    def forward(  # type: ignore[override]
        self, tokens: Tensor, padding_mask: Tensor | None, other_tokens: Tensor, other_padding_mask: Tensor | None
    ) -> Tensor:
        """tokens, other_tokens: `[batch, seq_len]`, their lengths may differ; masks, or None where nothing is padded.

        Returns `[batch, classes]`.
        """
        # Both documents in one batch of equal length: twice the work per kernel, and random features that are drawn
        # at every pass are the same for both.
        pairs = ((tokens, padding_mask), (other_tokens, other_padding_mask))
        longest = max(tokens.shape[1], other_tokens.shape[1])
        both = torch.cat([_lengthen(t, longest, 0) for t, _ in pairs])
        whole = all(mask is None and t.shape[1] == longest for t, mask in pairs)
        masks = None if whole else torch.cat([_lengthen(_mask(t, m), longest, True) for t, m in pairs])
        a, b = self.pooled(both, masks).chunk(2)
        return self.head(torch.cat((a, b, a * b, a - b), dim=-1))


def _mask(tokens: Tensor, mask: Tensor | None) -> Tensor:
    return torch.zeros_like(tokens, dtype=torch.bool) if mask is None else mask


def _lengthen(x: Tensor, length: int, value: int | bool) -> Tensor:
    return nn.functional.pad(x, (0, length - x.shape[1]), value=value)


def build_classifier(
    attention: str,
    *,
    vocab_size: int,
    num_classes: int,
    max_len: int,
    mlp_dim: int = 128,
    pooling: Literal["mean", "cls"] = "mean",
    head_layers: Literal[2, 3] = 2,
    num_inputs: Literal[1, 2] = 1,
    **encoder: Any,
) -> Classifier:
    """A classifier of sequences, or of pairs with two inputs; further arguments as for `build_encoder`."""
    tower = build_encoder(
        attention, vocab_size=vocab_size, max_len=max_len, mlp_dim=mlp_dim, cls_token=pooling == "cls", **encoder
    )
    classifier = PairClassifier if num_inputs == 2 else Classifier
    return classifier(tower, num_classes, mlp_dim, pooling, head_layers)
