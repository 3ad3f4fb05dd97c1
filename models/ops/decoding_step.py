"""A decoded token on a card: all between a layer's two projections in one kernel, where torch launches twenty."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._triton import has_triton

from .causal_linear_attention import LinearState, empty_state
from .feature_maps import NORMALISE_EPSILON

# The largest part of a state that a program holds in registers: entries of S for the sines, say, of one head.
LARGEST_BLOCK = 1 << 14


def decodes_fused(q: Tensor, num_features: int) -> bool:
    """Whether `decoding_step` is for these queries, `[batch, heads, seq_len, head_dim]`, with so many features D.

    One token on a card, without gradients, in float32 or less. What is compiled is left to the compiler.
    """
    return (
        q.is_cuda
        and q.shape[2] == 1
        and q.dtype != torch.float64
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and _block(q.shape[-1]) * _block(num_features) <= LARGEST_BLOCK
        and has_triton()
    )


def decoding_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearState | None,
    feature_map: Literal["gaussian", "arccos", "elu"],
    eps: float,
    w: Tensor | None = None,
    sigma: Tensor | None = None,
    temperature: float = 1.0,
    gate: Tensor | None = None,
) -> tuple[Tensor, LinearState]:
    """Features of q and k, `linear_attention_step` with them; the state is overwritten.

    `gaussian` and `arccos` are those of `models.ops.feature_maps`, of l2_normalize(x) * sigma / temperature; `elu` is
    elu(x) + 1. Computed in float32.

    q, k, v: `[batch, heads, 1, head_dim]`, the last dimension contiguous; state: None before the first token; w:
    `[heads, num_features, head_dim]`, contiguous; sigma: `[heads, 1, head_dim]`; gate: the logit of g_t, `[batch,
    heads, 1]`; eps: guard of the denominator. Returns the output, like v, and the state after the token.
    """
    from .decoding_kernel import step_kernel

    batch, heads, _, head_dim = q.shape
    num_features = head_dim if w is None else w.shape[1]
    if state is None:
        width = 2 * num_features if feature_map == "gaussian" else num_features
        state = empty_state(q.new_empty(batch, heads, 1, width), v)
    state = LinearState(*(x.contiguous() for x in state))
    out = torch.empty(batch, heads, 1, head_dim, dtype=v.dtype, device=v.device)
    block_dim, block_features = _block(head_dim), _block(num_features)
    kernel: Any = step_kernel[(batch * heads,)]
    with torch.cuda.device_of(q):  # Triton launches on the current card
        kernel(
            q, k, v, w, None if sigma is None else sigma.contiguous(), gate, state.sums, state.weight, out,
            *(stride for x in (q, k, v) for stride in x.stride()[:2]), *((0, 0) if gate is None else gate.stride()[:2]),
            temperature, eps,
            HEADS=heads, HEAD_DIM=head_dim, NUM_FEATURES=num_features,
            BLOCK_DIM=block_dim, BLOCK_FEATURES=block_features,
            MAP=feature_map, GATED=gate is not None, NORMALISE_EPS=NORMALISE_EPSILON,
            num_warps=min(max(block_dim * block_features // 512, 4), 16),
        )  # fmt: skip
    return out, state


def _block(size: int) -> int:
    """The power of two that holds so many: sizes of Triton's blocks."""
    return 1 << (size - 1).bit_length()
