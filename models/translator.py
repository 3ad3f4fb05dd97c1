"""Encoder-decoder transformer whose decoder attends causally and across with any attention that can; beam search."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .attention.base import MultiHeadAttention
from .decoder import DecoderBlock, States, generating
from .encoder import Block, Dropout, build_layers, sinusoidal_positions
from .registry import require_forms
from .vocabulary import Vocabulary


class CrossBlock(DecoderBlock):
    """The decoder's block with cross attention between self-attention and the feed-forward layer."""

    cross: MultiHeadAttention

    def __init__(self, attention: nn.Module, cross: nn.Module, dim: int, mlp_dim: int, dropout: float) -> None:
        super().__init__(attention, dim, mlp_dim, dropout)
        self.cross_norm = nn.LayerNorm(dim)
        self.add_module("cross", cross)

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Any, state: Any = None, keep_state: bool = False
    ) -> tuple[Tensor, Any]:
        """As the decoder's block; memory: what `cross.remember` made of the source."""
        mixed, state = self.attention.causal(self.attention_norm(x), state, keep_state)
        x = self._add(x, self.attention, mixed)
        x = self._add(x, self.cross, self.cross.cross(self.cross_norm(x), memory))
        return x + self.mlp(self.mlp_norm(x)), state


class Translator(nn.Module):
    """Target logits from source and target so far; one vocabulary for both. Built by `build_translator`.

    Pre-norm, sinusoidal positions. Token 0 is padding.
    """

    def __init__(
        self,
        encoder_blocks: list[Block],
        decoder_blocks: list[CrossBlock],
        *,
        vocab_size: int,
        dim: int,
        max_len: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.max_len = max_len
        self.vocabulary = Vocabulary(vocab_size, dim)
        self.register_buffer("positions", sinusoidal_positions(max_len, dim), persistent=False)
        self.positions: Tensor
        self.dropout = Dropout(dropout)
        self.encoder_blocks, self.encoder_norm = nn.ModuleList(encoder_blocks), nn.LayerNorm(dim)
        self.decoder_blocks, self.decoder_norm = nn.ModuleList(decoder_blocks), nn.LayerNorm(dim)

    def forward(self, source: Tensor, source_mask: Tensor | None, target: Tensor) -> Tensor:
        """source: `[batch, source_len]`; source_mask: the same, True = padding, or None; target: `[batch, target_len]`.

        Returns logits of the token after each of the target's, `[batch, target_len, vocab_size]`.
        """
        logits, _ = self.decode(target, self.remember(self.encode(source, source_mask), source_mask))
        return logits

    def encode(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        """Hidden states of the source, `[batch, source_len, dim]`."""
        x = self._embed(source, 0)
        for block in self.encoder_blocks:
            x = block(x, source_mask)
        return self.encoder_norm(x)

    def remember(self, hidden: Tensor, source_mask: Tensor | None) -> list[Any]:
        """What every layer's cross attention keeps of the encoder's output: computed once for a whole translation."""
        blocks = cast("list[CrossBlock]", list(self.decoder_blocks))
        return [block.cross.remember(hidden, source_mask) for block in blocks]

    def decode(
        self,
        target: Tensor,
        memories: list[Any],
        states: States | None = None,
        start: int = 0,
        keep_state: bool = False,
    ) -> tuple[Tensor, States | None]:
        """Logits after each token of target, at positions `start` and after; states as in `LanguageModel.forward`."""
        x = self._embed(target, start)
        after: States = []
        blocks = zip(self.decoder_blocks, memories, states or [None] * len(self.decoder_blocks), strict=True)
        for block, memory, state in blocks:
            x, state = block(x, memory, state, keep_state)
            after.append(state)
        return self.vocabulary.logits(self.decoder_norm(x)), after if keep_state else None

    def translate(
        self,
        source: Tensor,
        source_mask: Tensor | None,
        *,
        begin: int,
        end: int,
        max_steps: int,
        beam: int = 1,
        length_penalty: float = 0.6,
    ) -> Tensor:
        """Token ids of the best translation found, `[batch, <= max_steps]`, padded with 0 behind `end`.

        beam: hypotheses kept per sentence, 1 is greedy. A finished one keeps its place among them until all are; then
        the one with the largest log-probability / length^length_penalty wins. States, constant for linear attentions,
        follow their hypotheses. Also of a model in training, which translates as in evaluation. Raises
        FloatingPointError where a log-probability is no number.
        """
        batch = len(source)
        with generating(self):
            hidden = self.encode(source, source_mask)
            # The hypotheses of one sentence share its memory, so that none has to be moved.
            masks = None if source_mask is None else source_mask.repeat_interleave(beam, 0)
            memories = self.remember(hidden.repeat_interleave(beam, 0), masks)
            tokens = source.new_full((batch * beam, 1), begin)
            scores = torch.full((batch, beam), -torch.inf, device=source.device)
            scores[:, 0] = 0.0  # all hypotheses are the same at first: extend one
            finished = torch.zeros(batch * beam, dtype=torch.bool, device=source.device)
            rows = torch.arange(batch, device=source.device).unsqueeze(1) * beam
            states: States | None = None
            for step in range(min(max_steps, self.max_len)):
                logits, states = self.decode(tokens[:, -1:], memories, states, step, keep_state=True)
                gains = logits[:, 0].float().log_softmax(dim=-1)
                # Only padding follows an end, at no cost, and nothing else does it.
                gains = gains.masked_fill(finished.unsqueeze(-1), -torch.inf)
                gains[:, 0] = torch.where(finished, 0.0, -torch.inf)
                totals = (scores.unsqueeze(-1) + gains.view(batch, beam, -1)).flatten(1)  # [batch, beam * vocab]
                scores, best = totals.topk(beam)
                chosen = (rows + best // gains.shape[-1]).flatten()
                new = (best % gains.shape[-1]).view(-1, 1)
                if beam > 1:
                    tokens, finished = tokens[chosen], finished[chosen]
                    states = tree_map_only(Tensor, lambda t, chosen=chosen: t[chosen], states)
                tokens = torch.cat((tokens, new), dim=1)
                finished = finished | (new[:, 0] == end)
                if bool(finished.all()):
                    break
            if bool(scores.isnan().any()):
                raise FloatingPointError("the log-probability of a translation became nan")
            tokens = tokens[:, 1:].view(batch, beam, -1)
            lengths = (tokens != 0).sum(dim=-1)
            best = (scores / lengths**length_penalty).argmax(dim=-1)
            return tokens[torch.arange(batch, device=source.device), best]

    def _embed(self, tokens: Tensor, start: int) -> Tensor:
        end = start + tokens.shape[1]
        if end > self.max_len:
            raise ValueError(f"{end} tokens; this model takes at most {self.max_len}")
        return self.dropout(self.vocabulary.embed(tokens) + self.positions[start:end])


def build_translator(
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
    cross: dict[str, Any] | None = None,
    **settings: Any,
) -> Translator:
    """A translator with the named attention as causal and as cross attention of every decoder layer.

    The encoder's attention is exact softmax for all, as in the paper, so that decoders are compared. num_layers: of
    encoder and decoder each; cross: settings of cross attention where they differ. Other arguments as for
    `build_encoder`. Raises UnknownAttention or ValueError as `build_attention` does, TypeError for an attention without
    causal or cross form.

    >>> model = build_translator("rfa", vocab_size=8000, max_len=128, cross={"num_features": 128})
    >>> logits = model(source, source_mask, target)
    >>> tokens = model.translate(source, source_mask, begin=1, end=2, max_steps=100, beam=4)
    """
    cross_settings = {**settings, **(cross or {})}
    require_forms(attention, settings, "causal")
    require_forms(attention, cross_settings, "cross")
    sizes = {
        "dim": dim,
        "num_heads": num_heads,
        "max_len": max_len,
        "dropout": attention_dropout,
        "bias": attention_bias,
    }
    encoder_blocks = [Block(layer, dim, mlp_dim, dropout) for layer in build_layers("sdpa", num_layers, **sizes)]
    decoder_blocks = [
        CrossBlock(layer, across, dim, mlp_dim, dropout)
        for layer, across in zip(
            build_layers(attention, num_layers, **sizes, **settings),
            build_layers(attention, num_layers, **sizes, **cross_settings),
            strict=True,
        )
    ]
    return Translator(encoder_blocks, decoder_blocks, vocab_size=vocab_size, dim=dim, max_len=max_len, dropout=dropout)
