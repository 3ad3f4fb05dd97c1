"""Random feature attention (Peng et al., ICLR 2021)."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.causal_linear_attention import LinearState, causal_linear_attention
from ..ops.decoding_step import decodes_fused, decoding_step
from ..ops.feature_maps import arccos_features, gaussian_features, l2_normalize, orthogonal_matrices
from ..ops.linear_attention import EPSILON, linear_attention, read_summary, summarize_keys
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("rfa")
class RandomFeatureAttention(MultiHeadAttention):
    """Random feature attention, O(seq_len) time and memory (Peng et al. 2021, section 3.1).

    Each head projects with its own matrix w_i = sigma * w~_i / temperature, sigma learned per head and channel.
    The w~ come from a pool drawn once from N(0, I) and kept in the state dict. Training draws num_heads of them
    anew at every forward pass, without replacement, by torch's seeded generator; evaluation always takes the
    first num_heads. The authors share one pool among all layers; here every layer owns one, so that two layers
    never share a matrix either.

    kernel: `gaussian` (sines and cosines, 2 D wide) or `arccos` (ReLU, D wide); num_features: D, random vectors per
    head; pool_size: matrices in the pool; redraw: draw anew in training, or use the evaluation's matrices always;
    orthogonal: rows of a matrix orthogonal in blocks of head_dim; learned_sigma: whether sigma is trained;
    temperature: the fixed tau; gate: RFA-Gate, which forgets by a learned amount per token and head and looks back
    alone (section 3.2). Raises ValueError for fewer than one feature or a pool smaller than num_heads.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        kernel: Literal["gaussian", "arccos"] = "gaussian",
        num_features: int = 64,
        pool_size: int = 500,
        redraw: bool = True,
        orthogonal: bool = False,
        learned_sigma: bool = True,
        temperature: float = 1.0,
        gate: bool = False,
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        if num_features < 1:
            raise ValueError(f"num_features is {num_features}; expected at least 1")
        if pool_size < num_heads:
            raise ValueError(f"pool_size {pool_size} is smaller than num_heads {num_heads}; each head needs a matrix")
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; expected a positive number")
        self.temperature, self.redraw, self.kernel = temperature, redraw, kernel
        self.sigma = nn.Parameter(torch.ones(num_heads, 1, self.head_dim), requires_grad=learned_sigma)
        self.gate = nn.Linear(dim, num_heads) if gate else None
        self.pool: Tensor
        draw = orthogonal_matrices if orthogonal else torch.randn
        self.register_buffer("pool", draw(pool_size, num_features, self.head_dim))

    @classmethod
    def forms(cls, settings: dict[str, Any]) -> set[str]:
        """A gate makes the layer causal alone."""
        return {"causal"} if settings.get("gate") else super().forms(settings)

    def random_matrices(self) -> Tensor:
        """The matrices w~ of this pass, `[heads, num_features, head_dim]`."""
        if self.training and self.redraw:
            return self.pool[torch.randperm(len(self.pool), device=self.pool.device)[: self.num_heads]]
        return self.pool[: self.num_heads]

    def _features(self, x: Tensor, w: Tensor) -> Tensor:
        # (sigma * w~) . x = w~ . (sigma * x): scaling x leaves w~ without a gradient, which saves two products.
        feature_map = gaussian_features if self.kernel == "gaussian" else arccos_features
        return feature_map(l2_normalize(x) * (self.sigma / self.temperature), w)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if self.gate is not None:
            raise TypeError("a gated RFA looks back alone; set gate to false for an encoder")
        w = self.random_matrices()
        return linear_attention(self._features(q, w), self._features(k, w), v, padding_mask)

    def attend_causal(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: LinearState | None, keep_state: bool
    ) -> tuple[Tensor, LinearState | None]:
        w = self.random_matrices()
        gate = None if self.gate is None else self.gate(x).transpose(1, 2)
        if decodes_fused(q, w.shape[1]):
            y, state = decoding_step(q, k, v, state, self.kernel, EPSILON, w, self.sigma, self.temperature, gate)
            return y, state if keep_state else None
        log_gate = None if gate is None else F.logsigmoid(gate)
        if q.shape[2] == 1:  # decoding is a matter of how many small operations there are
            phi_q, phi_k = self._features(torch.cat((q, k)), w).chunk(2)
        else:
            phi_q, phi_k = self._features(q, w), self._features(k, w)
        y, state = causal_linear_attention(phi_q, phi_k, v, log_gate, state)
        return y, state if keep_state else None

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        w = self.random_matrices()
        return summarize_keys(self._features(k, w), v, padding_mask), w

    def read(self, q: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        summary, w = memory  # the queries need the same random matrices as the keys
        return read_summary(self._features(q, w), summary).to(q.dtype)
