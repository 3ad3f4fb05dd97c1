"""Feature maps: functions phi with phi(q) . phi(k) close to a kernel of q and k."""

from typing import Any

import torch
from torch import Tensor

# That of the authors' code; it keeps zero vectors finite.
NORMALISE_EPSILON = 1e-3


def l2_normalize(x: Tensor, eps: float = NORMALISE_EPSILON) -> Tensor:
    """Scale the last dimension to unit length, `x / (|x| + eps)`.

    Equal key lengths are what lets RFA drop the factor exp(|k|^2 / 2 sigma^2), which would otherwise weigh
    each key (Peng et al. 2021, section 3.1).

    x: `[..., head_dim]`; returns the same shape.
    """
    return x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)


def project(x: Tensor, w: Tensor) -> Tensor:
    """w_i . x for every row w_i of a head's matrix; shapes as for `gaussian_features`, D wide."""
    if x.shape[2] == 1:
        # Decoding: one product per head over the batch. A batched one would copy w for every sequence.
        return torch.einsum("bhtd,hfd->bhtf", x, w)
    return x @ w.transpose(-1, -2)


def gaussian_features(x: Tensor, w: Tensor) -> Tensor:
    """Random Fourier features of the Gaussian kernel (Rahimi and Recht 2007; Peng et al. 2021, equation 3).

    phi(x) = sqrt(1/D) [sin(w_1 . x), ..., sin(w_D . x), cos(w_1 . x), ..., cos(w_D . x)], so that with
    w_i ~ N(0, I / sigma^2) the expectation of phi(x) . phi(y) is exp(-|x - y|^2 / 2 sigma^2).

    x: `[batch, heads, seq_len, head_dim]`; w: `[heads, num_features, head_dim]`, one matrix per head.
    Returns `[batch, heads, seq_len, 2 * num_features]`.
    """
    projected = project(x, w)  # [batch, heads, seq_len, num_features]
    # torch.compile finds by itself what the function below does by hand, and recomputes the features besides.
    return sin_cos_naive(projected) if torch.compiler.is_compiling() else sin_cos(projected)


def sin_cos(x: Tensor) -> Tensor:
    """sqrt(1/D) [sin x, cos x] for x of width D, `[..., D]` -> `[..., 2 D]`: the layer's largest tensor, made once.

    Backward reads the result alone, since each half is the other's derivative; autograd would keep x as well.
    """
    # Calling an autograd function takes longer than a decoded token's sines.
    return _SinCos.apply(x) if torch.is_grad_enabled() else _sin_cos(x)


def sin_cos_naive(x: Tensor) -> Tensor:
    """`sin_cos` by its definition."""
    return torch.cat((x.sin(), x.cos()), dim=-1) * x.shape[-1] ** -0.5


def _sin_cos(x: Tensor) -> Tensor:
    width = x.shape[-1]
    features = x.new_empty(*x.shape[:-1], 2 * width)
    torch.sin(x, out=features[..., :width])
    torch.cos(x, out=features[..., width:])
    features *= width**-0.5
    return features


class _SinCos(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = _sin_cos(x)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        sin, cos = features.chunk(2, dim=-1)
        grad_sin, grad_cos = grads[0].chunk(2, dim=-1)
        return (grad_sin * cos).addcmul_(grad_cos, sin, value=-1)


def arccos_features(x: Tensor, w: Tensor) -> Tensor:
    """Random features of the first-order arc-cosine kernel (Cho and Saul 2009; Peng et al. 2021, section 3.1).

    phi(x) = sqrt(1/D) [relu(w_1 . x), ..., relu(w_D . x)]; for unit vectors at angle t and w_i ~ N(0, I) the
    expectation of phi(x) . phi(y) is (sin t + (pi - t) cos t) / (2 pi).

    x: `[batch, heads, seq_len, head_dim]`; w: `[heads, num_features, head_dim]`.
    Returns `[batch, heads, seq_len, num_features]`.
    """
    # The constant goes to w, so that backward finds all it needs in the features themselves.
    return _relu(project(x, w * w.shape[-2] ** -0.5))


def _relu(x: Tensor) -> Tensor:
    """relu of features, which are kept for backward in any case: compiled, torch would keep a mask of bools besides."""
    return _Relu.apply(x) if torch.compiler.is_compiling() else torch.relu(x)


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = torch.relu(x)
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return grads[0] * features.sign()


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, the linear transformer's positive features (Katharopoulos et al. 2020, equation 7); same shape."""
    return torch.nn.functional.elu(x) + 1.0


def orthogonal_matrices(num_matrices: int, num_rows: int, dim: int) -> Tensor:
    """Gaussian matrices whose rows are orthogonal within blocks of `dim` (Yu et al. 2016; Choromanski et al. 2021).

    Directions come from QR of a Gaussian matrix, lengths from a chi distribution with `dim` degrees of freedom, so
    that every row on its own is N(0, I). Returns `[num_matrices, num_rows, dim]`.
    """
    blocks = -(-num_rows // dim)
    directions, triangle = torch.linalg.qr(torch.randn(num_matrices, blocks, dim, dim))
    # QR's convention fixes the signs of the triangle's diagonal; undo it, or the directions are not uniform.
    directions = directions * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    rows = directions.transpose(-1, -2).reshape(num_matrices, blocks * dim, dim)[:, :num_rows]
    return rows * torch.randn(num_matrices, num_rows, dim).norm(dim=-1, keepdim=True)


def positive_features(x: Tensor, w: Tensor, left_out: Tensor | None = None, per_row: bool = True) -> Tensor:
    """Positive random features of exp(q . k / sqrt(head_dim)), FAVOR+ (Choromanski et al. 2021, equation 5).

    phi(x) = exp(w_i . y - |y|^2 / 2) with y = x / head_dim^1/4, divided by its largest entry so that nothing
    overflows: of each row for queries, where the factor cancels and exp(-|y|^2 / 2) with it, and of all rows together
    for keys, where it has to be the same. Computed in float32.

    x: `[batch, heads, seq_len, head_dim]`; w: `[num_features, head_dim]`; left_out, for keys: `[batch, seq_len]` bool,
    rows whose features are 0; per_row: True for queries. Returns `[batch, heads, seq_len, num_features]`.
    """
    with torch.autocast(x.device.type, enabled=False):
        y = x.to(torch.promote_types(x.dtype, torch.float32)) * x.shape[-1] ** -0.25
        # In place where it can be: the layer's largest tensor is written once.
        exponent = y @ w.to(y.dtype).transpose(-1, -2)
        if per_row:
            return exponent.sub_(exponent.detach().amax(dim=-1, keepdim=True)).exp_()
        exponent.sub_(y.square().sum(dim=-1, keepdim=True) / 2)
        if left_out is not None:
            exponent.masked_fill_(left_out[:, None, :, None], -torch.inf)
        largest = exponent.detach().amax(dim=(-2, -1), keepdim=True)
        # Where all is left out there is no largest entry; any finite number will do.
        return exponent.sub_(largest.where(largest.isfinite(), torch.zeros_like(largest))).exp_()


def relu_features(x: Tensor, w: Tensor, eps: float = 1e-3) -> Tensor:
    """Features of generalised attention with ReLU, D^-1/2 relu(w_i . x) + eps (Choromanski et al. 2021, section 4.2).

    x: `[batch, heads, seq_len, head_dim]`; w: `[num_features, head_dim]`. Returns `[..., num_features]`.
    """
    return torch.relu(x @ (w * w.shape[-2] ** -0.5).transpose(-1, -2)) + eps
