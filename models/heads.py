"""From hidden states to class scores: pooling and classifiers."""

from typing import Any, Literal

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


class Classifier(nn.Module):
    """One tower: encoder, pooling, then dim -> mlp_dim -> ReLU -> classes (Tay et al. 2021's classifier head)."""

    def __init__(self, encoder: Encoder, num_classes: int, mlp_dim: int, pooling: Literal["mean", "cls"]) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.head = nn.Sequential(nn.Linear(encoder.dim, mlp_dim), nn.ReLU(), nn.Linear(mlp_dim, num_classes))

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """tokens: `[batch, seq_len]`; padding_mask: `[batch, seq_len]` bool. Returns logits `[batch, classes]`."""
        hidden, mask = self.encoder(tokens, padding_mask)
        pooled = hidden[:, 0] if self.pooling == "cls" else mean_pool(hidden, mask)
        return self.head(pooled)


def build_classifier(
    attention: str,
    *,
    vocab_size: int,
    num_classes: int,
    max_len: int,
    mlp_dim: int = 128,
    pooling: Literal["mean", "cls"] = "mean",
    **encoder: Any,
) -> Classifier:
    """A classifier of single sequences; further arguments as for `build_encoder`."""
    tower = build_encoder(
        attention, vocab_size=vocab_size, max_len=max_len, mlp_dim=mlp_dim, cls_token=pooling == "cls", **encoder
    )
    return Classifier(tower, num_classes, mlp_dim, pooling)
