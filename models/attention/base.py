"""What every multi-head attention shares: projections, splitting into heads, output."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class MultiHeadAttention(nn.Module, ABC):
    """Projections around `attend`, which a variant writes (Vaswani et al. 2017, section 3.2.2).

    A variant's own settings are keyword-only arguments of its `__init__`; the remaining ones go to this class.

    dim: width of the model; num_heads: must divide dim; max_len: longest sequence the layer will see;
    dropout: probability, for variants with weights to drop; bias: whether the projections have one.
    Raises ValueError when num_heads does not divide dim.
    """

    # A variant with one projection for queries and keys sets this; its `attend` gets the same tensor as q and k.
    shares_query_key = False

    def __init__(self, dim: int, num_heads: int, max_len: int, *, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim {dim} is not divisible by num_heads {num_heads}; choose num_heads that divides it")
        self.dim, self.num_heads, self.head_dim, self.max_len = dim, num_heads, dim // num_heads, max_len
        self.dropout = dropout
        self.qkv_proj = nn.Linear(dim, (2 if self.shares_query_key else 3) * dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """x: `[batch, seq_len, dim]`; padding_mask: `[batch, seq_len]` bool, True = padding. Returns x's shape.

        Rows at padded positions hold no meaning.
        """
        batch, seq_len, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, seq_len, -1, self.num_heads, self.head_dim)
        q, *k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, seq_len, head_dim]
        y = self.attend(q, k[0] if k else q, v, padding_mask)
        return self.out_proj(y.transpose(1, 2).reshape(batch, seq_len, self.dim))

    def share_with(self, first: "MultiHeadAttention") -> None:
        """Use what is common to all layers of an encoder; called on every later layer with the first one."""

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Mix v by q and k. q, k, v: `[batch, heads, seq_len, head_dim]`; returns the same shape."""

    @property
    def active_dropout(self) -> float:
        """The dropout probability while training, 0 in evaluation."""
        return self.dropout if self.training else 0.0
