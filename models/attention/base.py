"""What every multi-head attention shares: projections, splitting into heads, output, and the forms it can take."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def check_mask(padding_mask: Tensor | None, x: Tensor) -> None:
    """Raise TypeError for a mask that is not of bools, ValueError for one that is not `[batch, seq_len]` of x."""
    if padding_mask is None:
        return
    if padding_mask.dtype != torch.bool:
        raise TypeError(f"padding_mask is of {padding_mask.dtype}; expected torch.bool, True = padding")
    if padding_mask.shape != x.shape[:2]:
        raise ValueError(f"padding_mask is {list(padding_mask.shape)}; expected {list(x.shape[:2])}, as of x")


def check_output(attention: nn.Module, y: object, like: Tensor, what: str) -> None:
    """Raise ValueError unless `attention` returned a tensor y of the shape of `like`, its `what`.

    One that broadcasts would go unseen.
    """
    if not isinstance(y, Tensor) or y.shape != like.shape:
        found = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"{type(attention).__name__} returned {found}; expected {list(like.shape)}, as of the {what}")


class MultiHeadAttention(nn.Module, ABC):
    """Projections around `attend`, which a variant writes (Vaswani et al. 2017, section 3.2.2).

    A variant's own settings are further arguments of its `__init__`; the remaining ones go to this class. One
    that can look back alone also writes `attend_causal`, one for cross attention `summarize` and `read`.

    dim: width of the model; num_heads: must divide dim; max_len: longest sequence the layer will see;
    dropout: probability, for variants with weights to drop; bias: whether the projections have one.
    Raises ValueError when one is not positive or num_heads does not divide dim.
    """

    # Whether the state of the causal form grows with the tokens it stands for, up to max_len.
    state_grows = False
    # A variant with one projection for queries and keys sets this; its `attend` gets the same tensor as q and k.
    shares_query_key = False

    def __init__(self, dim: int, num_heads: int, max_len: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        if min(dim, num_heads, max_len) < 1:
            raise ValueError(f"dim {dim}, num_heads {num_heads}, max_len {max_len}; expected positive numbers")
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; choose num_heads that divides it")
        self.dim, self.num_heads, self.head_dim, self.max_len = dim, num_heads, dim // num_heads, max_len
        self.dropout = dropout
        self.qkv_proj = nn.Linear(dim, (2 if self.shares_query_key else 3) * dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x: `[batch, seq_len, dim]`; padding_mask: `[batch, seq_len]` bool, True = padding; returns the shape of x.

        None instead of a mask: nothing is padded. Rows at padded positions hold no meaning. Raises TypeError for a mask
        of numbers, which elsewhere often means the opposite, and ValueError for one of another shape or where `attend`
        returns one.
        """
        check_mask(padding_mask, x)
        q, k, v = self._project(x)
        return self._join(self.attend(q, k, v, padding_mask), q)

    def causal(self, x: Tensor, state: Any = None, keep_state: bool = False) -> tuple[Tensor, Any]:
        """Self-attention in which a token sees itself and those before it.

        x: `[batch, seq_len, dim]`, which follows the tokens that `state` stands for; keep_state: whether to return
        the state after x, else None. Returns x's shape and the state. Raises TypeError where the variant has no
        causal form.
        """
        q, k, v = self._project(x)
        y, state = self.attend_causal(q, k, v, x, state, keep_state)
        return self._join(y, q), state

    def remember(self, memory: Tensor, padding_mask: Tensor | None = None) -> Any:
        """What cross attention needs of `memory`, `[batch, memory_len, dim]`: computed once for all its queries.

        padding_mask: `[batch, memory_len]`, as for `forward`.
        """
        check_mask(padding_mask, memory)
        weight, bias = self._slice(1, 3)
        k, v = self._heads(F.linear(memory, weight, bias)).chunk(2, dim=1)
        return self.summarize(k, v, padding_mask)

    def cross(self, x: Tensor, memory: Any) -> Tensor:
        """Cross attention of x, `[batch, seq_len, dim]`, to what `remember` returned; the shape of x."""
        q = self._heads(F.linear(x, *self._slice(0, 1)))
        return self._join(self.read(q, memory), q)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Mix v by q and k, `[batch, heads, seq_len, head_dim]`; returns the same shape. padding_mask: of `forward`."""

    def attend_causal(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool
    ) -> tuple[Tensor, Any]:
        """As `attend`, causally after `state`; x is the layer's input, for gates."""
        raise TypeError(f"{type(self).__name__} has no causal form")

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        """What `read` needs of keys and values, `[batch, heads, memory_len, head_dim]`."""
        raise TypeError(f"{type(self).__name__} has no cross attention")

    def read(self, q: Tensor, memory: Any) -> Tensor:
        """Outputs of the queries `[batch, heads, seq_len, head_dim]` from what `summarize` returned."""
        raise TypeError(f"{type(self).__name__} has no cross attention")

    def begin_pass(self) -> None:
        """What every training pass changes in Python, such as a count of passes; its block calls it before each.

        Apart from `forward`, because a compiled block would be cut there into pieces, or compiled anew for every count.
        """

    def share_with(self, first: "MultiHeadAttention") -> None:
        """Use what is common to all layers of an encoder; called on every later layer with the first one."""

    @classmethod
    def forms(cls, settings: dict[str, Any]) -> set[str]:
        """What a layer with these settings can be: `encoder` (sees all tokens), `causal`, `cross`."""
        found = {"encoder"}
        if (cls.attend_causal, cls.causal) != (MultiHeadAttention.attend_causal, MultiHeadAttention.causal):
            found.add("causal")
        if cls.summarize is not MultiHeadAttention.summarize:
            found.add("cross")
        return found

    @property
    def active_dropout(self) -> float:
        """The dropout probability while training, 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of x, each `[batch, heads, seq_len, head_dim]`."""
        batch, seq_len, _ = x.shape
        parts = self.qkv_proj.out_features // self.dim
        qkv = self.qkv_proj(x).view(batch, seq_len, parts, self.num_heads, self.head_dim)
        q, *k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k[0] if k else q, v

    def _slice(self, start: int, end: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of projections `start` to `end` of q, k, v."""
        rows = slice(start * self.dim, end * self.dim)
        bias = self.qkv_proj.bias
        return self.qkv_proj.weight[rows], None if bias is None else bias[rows]

    def _heads(self, x: Tensor) -> Tensor:
        """`[batch, seq_len, n * dim]` -> `[batch, n * heads, seq_len, head_dim]`."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _join(self, y: Tensor, q: Tensor) -> Tensor:
        """The output `[batch, seq_len, dim]` of heads y, `[batch, heads, seq_len, head_dim]` as the queries q."""
        check_output(self, y, q, "queries")
        return self.out_proj(y.transpose(1, 2).reshape(y.shape[0], y.shape[2], self.dim))
