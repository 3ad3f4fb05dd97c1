"""Random feature attention (Peng et al., ICLR 2021)."""

import torch
from torch import Tensor, nn

from ..ops.feature_maps import gaussian_features, l2_normalize
from ..ops.linear_attention import linear_attention
from ..registry import register_attention
from .base import MultiHeadAttention


@register_attention("rfa")
class RandomFeatureAttention(MultiHeadAttention):
    """Gaussian random feature attention, O(seq_len) time and memory (Peng et al. 2021, section 3.1).

    Each head projects with its own matrix w_i = sigma * w~_i / temperature, sigma learned per head and channel.
    The w~ come from a pool drawn once from N(0, I) and kept in the state dict. Training draws num_heads of them
    anew at every forward pass, without replacement, by torch's seeded generator; evaluation always takes the
    first num_heads. The authors share one pool among all layers; here every layer owns one, so that two layers
    never share a matrix either.

    num_features: D, random vectors per head (features are 2 D wide); pool_size: matrices in the pool;
    temperature: the fixed tau. Raises ValueError for fewer than one feature or a pool smaller than num_heads.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_len: int,
        *,
        num_features: int = 64,
        pool_size: int = 500,
        temperature: float = 1.0,
        **shared: object,
    ) -> None:
        super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
        if num_features < 1:
            raise ValueError(f"num_features is {num_features}; expected at least 1")
        if pool_size < num_heads:
            raise ValueError(f"pool_size {pool_size} is smaller than num_heads {num_heads}; each head needs a matrix")
        if temperature <= 0:
            raise ValueError(f"temperature is {temperature}; expected a positive number")
        self.temperature = temperature
        self.sigma = nn.Parameter(torch.ones(num_heads, 1, self.head_dim))
        self.pool: Tensor
        self.register_buffer("pool", torch.randn(pool_size, num_features, self.head_dim))

    def random_matrices(self) -> Tensor:
        """The scaled matrices w of this pass, `[heads, num_features, head_dim]`."""
        if self.training:
            drawn = self.pool[torch.randperm(len(self.pool), device=self.pool.device)[: self.num_heads]]
        else:
            drawn = self.pool[: self.num_heads]
        return drawn * self.sigma / self.temperature

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        w = self.random_matrices()
        phi_q = gaussian_features(l2_normalize(q), w)  # [batch, heads, seq_len, 2 * num_features]
        phi_k = gaussian_features(l2_normalize(k), w)
        return linear_attention(phi_q, phi_k, v, padding_mask)
