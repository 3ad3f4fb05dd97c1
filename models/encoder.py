"""Pre-norm transformer encoder around any registered attention."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .attention.base import MultiHeadAttention, check_output
from .ops.dropout import drop
from .registry import build_attention


def sinusoidal_positions(max_len: int, dim: int) -> Tensor:
    """Fixed table `[max_len, dim]`: sines in even, cosines in odd columns (Vaswani et al. 2017, section 3.5)."""
    position = torch.arange(max_len, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(10_000.0) / dim))
    table = torch.zeros(max_len, dim)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: dim // 2])
    return table


class Dropout(nn.Dropout):
    """torch's module on `ops.dropout`."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) (pre-norm: Xiong et al. 2020)."""

    def __init__(self, attention: nn.Module, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim), nn.GELU(), Dropout(dropout), nn.Linear(mlp_dim, dim), Dropout(dropout)
        )
        self.dropout = Dropout(dropout)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A pass, compiled or not, after what its attentions do uncompiled."""
        if self.training:
            for layer in self.children():
                if isinstance(layer, MultiHeadAttention):
                    layer.begin_pass()
        return super().__call__(*args, **kwargs)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        x = self._add(x, self.attention, self.attention(self.attention_norm(x), padding_mask=padding_mask))
        return x + self.mlp(self.mlp_norm(x))

    def _add(self, x: Tensor, attention: nn.Module, mixed: Tensor) -> Tensor:
        """The residual connection around `attention`, which returned `mixed`. Raises ValueError for another shape."""
        check_output(attention, mixed, x, "inputs")
        return x + self.dropout(mixed)


class Encoder(nn.Module):
    """Token ids to hidden states: embedding, positions, blocks, final norm. Built by `build_encoder`."""

    def __init__(
        self,
        blocks: list[Block],
        *,
        vocab_size: int,
        dim: int,
        max_len: int,
        positions: Literal["learned", "sinusoidal"],
        cls_token: bool,
        embedding_std: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dim, self.max_len = dim, max_len
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.embedding.weight, std=embedding_std)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim)) if cls_token else None
        num_positions = max_len + int(cls_token)
        if positions == "learned":
            self.positions: Tensor = nn.Parameter(torch.randn(num_positions, dim) * 0.02)
        else:
            self.register_buffer("positions", sinusoidal_positions(num_positions, dim), persistent=False)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """tokens: `[batch, seq_len]` integer ids; padding_mask: `[batch, seq_len]` bool, True = padding.

        Returns the hidden states `[batch, seq_len, dim]` and their mask, both one longer with a [CLS] at the
        front where the encoder has one. Raises ValueError for sequences over max_len.
        """
        if tokens.shape[1] > self.max_len:
            raise ValueError(f"sequence of {tokens.shape[1]} tokens; this encoder takes at most {self.max_len}")
        x = self.embedding(tokens)  # [batch, seq_len, dim]
        if self.cls is not None:
            x = torch.cat((self.cls.expand(len(x), 1, -1), x), dim=1)  # [batch, 1 + seq_len, dim]
            if padding_mask is not None:
                padding_mask = nn.functional.pad(padding_mask, (1, 0), value=False)
        x = self.dropout(x + self.positions[: x.shape[1]])
        for block in self.blocks:
            x = block(x, padding_mask)
        return self.norm(x), padding_mask


def build_layers(attention: str, num_layers: int, **arguments: Any) -> list[nn.Module]:
    """The attention of every layer, sharing what the variant shares among layers; arguments as `build_attention`'s."""
    layers = [build_attention(attention, **arguments) for _ in range(num_layers)]
    first = layers[0]
    for later in layers[1:]:
        if isinstance(first, MultiHeadAttention) and isinstance(later, MultiHeadAttention):
            later.share_with(first)
    return layers


def build_encoder(
    attention: str,
    *,
    vocab_size: int,
    max_len: int,
    dim: int = 64,
    num_heads: int = 2,
    num_layers: int = 2,
    mlp_dim: int = 128,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    attention_bias: bool = True,
    positions: Literal["learned", "sinusoidal"] = "learned",
    cls_token: bool = False,
    embedding_std: float = 0.02,
    **settings: Any,
) -> Encoder:
    """An encoder with the named attention in every layer; the defaults are those of the `compact` protocol.

    vocab_size: number of token ids, padding included; max_len: longest sequence, without the [CLS];
    attention_dropout, attention_bias: given to every attention; positions: learned table or fixed sines;
    cls_token: put a learned vector in front of every sequence; embedding_std: of the initial token embeddings;
    settings: the attention's own. Raises UnknownAttention or ValueError as `build_attention` does.

    >>> encoder = build_encoder("rfa", vocab_size=257, max_len=4000, num_features=128)
    >>> hidden, mask = encoder(tokens, padding_mask)
    """
    layers = build_layers(
        attention,
        num_layers,
        dim=dim,
        num_heads=num_heads,
        max_len=max_len + int(cls_token),
        dropout=attention_dropout,
        bias=attention_bias,
        **settings,
    )
    blocks = [Block(layer, dim, mlp_dim, dropout) for layer in layers]
    return Encoder(
        blocks,
        vocab_size=vocab_size,
        dim=dim,
        max_len=max_len,
        positions=positions,
        cls_token=cls_token,
        embedding_std=embedding_std,
        dropout=dropout,
    )
