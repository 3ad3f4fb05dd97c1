"""Token ids to vectors and hidden states back to token ids, with the same weights (Press and Wolf 2017)."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Vocabulary(nn.Module):
    """One matrix, `[vocab_size, dim]`, as embedding and as output layer.

    dim: width of the model; the embeddings are scaled by its root, as Vaswani et al. 2017, section 3.4, have it.
    """

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.scale = math.sqrt(dim)
        self.weight = nn.Parameter(torch.randn(vocab_size, dim) * dim**-0.5)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens: `[batch, seq_len]` ids; returns `[batch, seq_len, dim]`."""
        return F.embedding(tokens, self.weight) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: `[..., dim]`; returns `[..., vocab_size]`."""
        return hidden @ self.weight.T

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihoods of targets, `[batch, seq_len]`, in nats; float32."""
        return _cross_entropy(self.logits(hidden).flatten(0, 1), targets.flatten()).view_as(targets)


class AdaptiveVocabulary(nn.Module):
    """Adaptive softmax (Grave et al. 2017) and adaptive inputs with its weights (Baevski and Auli 2019).

    Ids are in the order of their frequency. Those below the first cutoff have vectors of width dim, those of each
    later band a quarter of the width before, and a projection to dim: time and memory for a vocabulary of hundreds
    of thousands.

    cutoffs: increasing, below vocab_size. Raises ValueError otherwise.
    """

    def __init__(self, vocab_size: int, dim: int, cutoffs: Sequence[int]) -> None:
        super().__init__()
        self.scale = math.sqrt(dim)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(dim, vocab_size, list(cutoffs), div_value=4.0)

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens: `[batch, seq_len]` ids; returns `[batch, seq_len, dim]`."""
        softmax = self.softmax
        low, *highs = softmax.cutoffs
        # Every band looks every token up and keeps its own: shapes stay the same from step to step.
        x = F.embedding(tokens.clamp_max(low - 1), softmax.head.weight[:low])
        for part, high in zip(softmax.tail, highs, strict=True):
            project, band = (cast("nn.Linear", layer).weight for layer in part.children())
            inside = ((tokens >= low) & (tokens < high)).unsqueeze(-1)
            x = torch.where(inside, F.embedding((tokens - low).clamp(0, high - low - 1), band) @ project, x)
            low = high
        return x * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all ids, `[..., vocab_size]`, for hidden `[..., dim]`."""
        return self.softmax.log_prob(hidden.flatten(0, -2)).unflatten(0, hidden.shape[:-1])

    def losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihoods of targets, `[batch, seq_len]`, in nats, without the logits of all ids; float32."""
        hidden, ids = hidden.flatten(0, 1), targets.flatten()
        softmax = self.softmax
        low, *highs = softmax.cutoffs
        entries, of_bands = ids, []
        for number, (part, high) in enumerate(zip(softmax.tail, highs, strict=True)):
            rows = ((ids >= low) & (ids < high)).nonzero().squeeze(1)
            of_bands.append((rows, _cross_entropy(part(hidden.index_select(0, rows)), ids[rows] - low)))
            entries = entries.index_fill(0, rows, softmax.shortlist_size + number)  # for the head, its band
            low = high
        losses = _cross_entropy(softmax.head(hidden), entries)
        for rows, of_band in of_bands:
            losses = losses.index_add(0, rows, of_band)
        return losses.view_as(targets)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of every row in nats, in float32 whatever the logits are."""
    return F.cross_entropy(logits.float(), targets, reduction="none")
