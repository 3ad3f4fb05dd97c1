"""Feature maps: functions phi with phi(q) . phi(k) close to a kernel of q and k."""

import torch
from torch import Tensor


def l2_normalize(x: Tensor, eps: float = 1e-3) -> Tensor:
    """Scale the last dimension to unit length, `x / (|x| + eps)`.

    Equal key lengths are what lets RFA drop the factor exp(|k|^2 / 2 sigma^2), which would otherwise weigh
    each key (Peng et al. 2021, section 3.1). `eps` is that of the authors' code and keeps zero vectors finite.

    x: `[..., head_dim]`; returns the same shape.
    """
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def gaussian_features(x: Tensor, w: Tensor) -> Tensor:
    """Random Fourier features of the Gaussian kernel (Rahimi and Recht 2007; Peng et al. 2021, equation 3).

    phi(x) = sqrt(1/D) [sin(w_1 . x), ..., sin(w_D . x), cos(w_1 . x), ..., cos(w_D . x)], so that with
    w_i ~ N(0, I / sigma^2) the expectation of phi(x) . phi(y) is exp(-|x - y|^2 / 2 sigma^2).

    x: `[batch, heads, seq_len, head_dim]`; w: `[heads, num_features, head_dim]`, one matrix per head.
    Returns `[batch, heads, seq_len, 2 * num_features]`.
    """
    projected = x @ w.transpose(-1, -2)  # [batch, heads, seq_len, num_features]
    # In place, because this is the layer's largest tensor and backward needs no unscaled copy of it.
    return torch.cat((projected.sin(), projected.cos()), dim=-1).mul_(w.shape[-2] ** -0.5)
