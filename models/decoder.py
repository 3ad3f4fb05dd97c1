"""Decoder-only transformer around any attention with a causal form, and generation with constant or growing state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .attention.base import MultiHeadAttention
from .encoder import Block, Dropout, build_layers, sinusoidal_positions
from .registry import require_forms
from .vocabulary import AdaptiveVocabulary, Vocabulary

States = list[Any]


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """No gradients, and `model` in evaluation: queries would not meet the random features that a state was made with.

    Afterwards it is in the mode it was in.
    """
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


class DecoderBlock(Block):
    """The encoder's block with causal attention, and a state instead of a padding mask."""

    attention: MultiHeadAttention

    def forward(  # type: ignore[override]
        self, x: Tensor, state: Any = None, keep_state: bool = False
    ) -> tuple[Tensor, Any]:
        """x: `[batch, seq_len, dim]` after the tokens of `state`; returns its shape and the state after it."""
        mixed, state = self.attention.causal(self.attention_norm(x), state, keep_state)
        x = self._add(x, self.attention, mixed)
        return x + self.mlp(self.mlp_norm(x)), state


class LanguageModel(nn.Module):
    """Next-token logits or losses. Built by `build_decoder`."""

    def __init__(
        self,
        blocks: list[DecoderBlock],
        vocabulary: Vocabulary | AdaptiveVocabulary,
        *,
        dim: int,
        max_len: int,
        positions: Literal["learned", "sinusoidal"],
        dropout: float,
    ) -> None:
        super().__init__()
        self.max_len, self.vocabulary = max_len, vocabulary
        if positions == "learned":
            self.positions: Tensor = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        else:
            self.register_buffer("positions", sinusoidal_positions(max_len, dim), persistent=False)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        tokens: Tensor,
        states: States | None = None,
        start: int = 0,
        keep_state: bool = False,
        targets: Tensor | None = None,
    ) -> tuple[Tensor, States | None]:
        """tokens: `[batch, seq_len]` ids at positions `start` and after; states: of the blocks, for what lies before.

        Returns logits `[batch, seq_len, vocab_size]`, or the losses in nats of targets `[batch, seq_len]` where these
        are given, and, with keep_state, the states after the last token. Raises ValueError for positions beyond
        max_len.
        """
        end = start + tokens.shape[1]
        if end > self.max_len:
            raise ValueError(f"{end} tokens; this decoder takes at most {self.max_len}")
        x = self.dropout(self.vocabulary.embed(tokens) + self.positions[start:end])
        after: States = []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks), strict=True):
            x, state = block(x, state, keep_state)
            after.append(state)
        hidden = self.norm(x)
        result = self.vocabulary.logits(hidden) if targets is None else self.vocabulary.losses(hidden, targets)
        return result, after if keep_state else None

    def generate(self, prompt: Tensor, steps: int) -> Tensor:
        """Greedy continuation of `prompt`, `[batch, length]`, by `steps` tokens; returns `[batch, length + steps]`.

        The prompt is read in parallel, then every token costs one pass over itself and the states. Also of a model in
        training, which generates as in evaluation.
        """
        tokens = [prompt]
        with generating(self):
            logits, states = self(prompt, keep_state=True)
            for number in range(steps):
                tokens.append(logits[:, -1:].argmax(dim=-1))
                if number < steps - 1:
                    logits, states = self(tokens[-1], states, prompt.shape[1] + number, keep_state=True)
        return torch.cat(tokens, dim=1)


def build_decoder(
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
    positions: Literal["learned", "sinusoidal"] = "sinusoidal",
    cutoffs: Sequence[int] = (),
    **settings: Any,
) -> LanguageModel:
    """A decoder-only language model with the named attention in every layer.

    cutoffs: of an `AdaptiveVocabulary`; without any all ids have vectors of width dim. Other arguments as for
    `build_encoder`. Raises UnknownAttention or ValueError as `build_attention` does, TypeError for an attention
    without a causal form.

    >>> model = build_decoder("rfa", vocab_size=257, max_len=512, gate=True)
    >>> logits, _ = model(tokens)
    >>> longer = model.generate(tokens[:, :8], steps=100)
    """
    require_forms(attention, settings, "causal")
    layers = build_layers(
        attention,
        num_layers,
        dim=dim,
        num_heads=num_heads,
        max_len=max_len,
        dropout=attention_dropout,
        bias=attention_bias,
        **settings,
    )
    blocks = [DecoderBlock(layer, dim, mlp_dim, dropout) for layer in layers]
    vocabulary = AdaptiveVocabulary(vocab_size, dim, cutoffs) if cutoffs else Vocabulary(vocab_size, dim)
    return LanguageModel(blocks, vocabulary, dim=dim, max_len=max_len, positions=positions, dropout=dropout)
