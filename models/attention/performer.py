"""Performer: softmax attention through positive orthogonal random features."""

import functools
from typing import Literal

import torch
from torch import Tensor

from ..ops.feature_maps import orthogonal_matrices, positive_features, relu_features
from ..ops.linear_attention import linear_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("performer")
class PerformerAttention(MultiHeadAttention):
    """FAVOR+ (Choromanski et al. 2021), O(seq_len) time and memory.

    The random matrix is shared by the heads, kept in the state dict, and drawn anew in training every `redraw_every`
    passes through the layer's block by torch's seeded generator (a layer on its own keeps it, as the public package's
    does); the number of passes so far is part of the state dict too.

    kernel: `softmax` (positive features) or `relu` (generalised attention); num_features: D; redraw_every: 0 keeps
    the first matrix; orthogonal: rows orthogonal in blocks of head_dim. Raises ValueError for num_features below 1
    or redraw_every below 0.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        kernel: Literal["softmax", "relu"] = "softmax",
        num_features: int = 256,
        redraw_every: int = 1000,
        orthogonal: bool = True,
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        if num_features < 1:
            raise ValueError(f"num_features is {num_features}; expected at least 1")
        if redraw_every < 0:
            raise ValueError(f"redraw_every is {redraw_every}; expected at least 1, or 0 to keep the first matrix")
        _keep_counting_uncompiled()
        self.kernel, self.redraw_every, self.orthogonal = kernel, redraw_every, orthogonal
        self.passes = 0
        self.projection: Tensor
        self.register_buffer("projection", self._draw(num_features))

    def _draw(self, num_features: int) -> Tensor:
        if self.orthogonal:
            return orthogonal_matrices(1, num_features, self.head_dim)[0]
        return torch.randn(num_features, self.head_dim)

    def get_extra_state(self) -> Tensor:
        """The number of training passes so far."""
        return torch.tensor(self.passes)

    def set_extra_state(self, state: Tensor) -> None:
        """Inverse of `get_extra_state`."""
        self.passes = int(state)

    def begin_pass(self) -> None:
        """Count the pass, and draw a new matrix when it is time."""
        self.passes += 1
        if self.redraw_every and self.passes % self.redraw_every == 0:
            self.projection.copy_(self._draw(len(self.projection)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if self.kernel == "relu":
            phi_q, phi_k = relu_features(q, self.projection), relu_features(k, self.projection)
        else:
            phi_q = positive_features(q, self.projection)
            phi_k = positive_features(k, self.projection, padding_mask, per_row=False)
        # Nothing cancels among positive features; the guard is only against dividing by zero.
        return linear_attention(phi_q, phi_k, v, padding_mask, eps=1e-6)


@functools.cache
def _keep_counting_uncompiled() -> None:
    """Leave the count of passes out of graphs even where a whole model is compiled, lest it be compiled anew for each.

    Called by the first Performer that is built: as a decorator it would import the compiler, more than a second,
    wherever `models` is imported.
    """
    PerformerAttention.begin_pass = torch.compiler.disable(PerformerAttention.begin_pass)  # type: ignore[method-assign]
