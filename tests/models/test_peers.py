"""Our layers against public implementations with the same weights. Where a package differs, the test says how."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from models import build_attention
from models.attention.linformer import LinformerAttention
from models.attention.performer import PerformerAttention
from models.ops.feature_maps import relu_features
from models.ops.linear_attention import linear_attention
from models.ops.lsh_attention import hash_buckets, lsh_attention

DIM, HEADS, SEQ_LEN = 32, 4, 96


def copy_projections(ours: nn.Module, *theirs: nn.Linear, out: nn.Linear) -> None:
    """The packages project without a bias and have one in the output."""
    with torch.no_grad():
        ours.qkv_proj.weight.copy_(torch.cat([linear.weight for linear in theirs]))  # type: ignore[union-attr, operator]
        ours.qkv_proj.bias.zero_()  # type: ignore[union-attr, operator]
        ours.out_proj.load_state_dict(out.state_dict())  # type: ignore[union-attr]


def assert_same(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Equal outputs and equal gradients of the input."""
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = ours(a), theirs(b)
    torch.testing.assert_close(y, z, atol=1e-5, rtol=1e-4)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (z * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seq_len", [SEQ_LEN, 40])
def test_linformer_package(seq_len: int) -> None:
    package = pytest.importorskip("linformer", reason="pip install linformer")
    theirs = package.LinformerSelfAttention(DIM, SEQ_LEN, k=16, heads=HEADS)
    ours = build_attention("linformer", DIM, HEADS, SEQ_LEN, k=16)
    assert isinstance(ours, LinformerAttention)
    copy_projections(ours, theirs.to_q, theirs.to_k, theirs.to_v, out=theirs.to_out)
    with torch.no_grad():
        ours.key_projection.copy_(theirs.proj_k.T)
        ours.value_projection.copy_(theirs.proj_v.T)
    # The package knows no padding mask; without one the two are the same.
    assert_same(ours, theirs, torch.randn(2, seq_len, DIM))


def test_performer_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("performer_pytorch.performer_pytorch", reason="pip install performer-pytorch")
    # The package adds 1e-4 to every feature, which the paper's equation 5 does not; without it the two are the same.
    # It also leaves padded keys in the denominator, and redraws only where a model-wide updater tells it to.
    monkeypatch.setattr(module, "softmax_kernel", partial(module.softmax_kernel, eps=0.0))
    theirs = module.SelfAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, nb_features=24)
    ours = build_attention("performer", DIM, HEADS, SEQ_LEN, num_features=24).eval()
    assert isinstance(ours, PerformerAttention)
    copy_projections(ours, theirs.to_q, theirs.to_k, theirs.to_v, out=theirs.to_out)
    ours.projection.copy_(theirs.fast_attention.projection_matrix)
    assert_same(ours, theirs, torch.randn(2, SEQ_LEN, DIM))


def test_performer_pytorch_with_relu() -> None:
    module = pytest.importorskip("performer_pytorch.performer_pytorch", reason="pip install performer-pytorch")
    fast = module.FastAttention(8, nb_features=24, generalized_attention=True)
    q, k, v = torch.randn(3, 2, HEADS, SEQ_LEN, 8).unbind(0)
    # The package scales inputs by head_dim^-1/4 and not by D^-1/2; the constant moves only its epsilon of 1e-3.
    w = fast.projection_matrix * 8**-0.25 * 24**0.5
    ours = linear_attention(relu_features(q, w), relu_features(k, w), v, eps=1e-6)
    torch.testing.assert_close(ours, fast(q, k, v), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rounds", [1, 3])
def test_reformer_pytorch(rounds: int) -> None:
    module = pytest.importorskip("reformer_pytorch.reformer_pytorch", reason="pip install reformer-pytorch")
    chunk_size, head_dim, seq_len = 16, 8, 128
    theirs = module.LSHAttention(bucket_size=chunk_size, n_hashes=rounds)
    q, v = torch.randn(2, 2 * HEADS, seq_len, head_dim).unbind(0)
    torch.manual_seed(3)
    # The package divides scores by sqrt(head_dim), where the authors' keys of unit variance cancel that division.
    expected, _, _ = theirs(q * head_dim**0.5, v)
    torch.manual_seed(3)
    rotations = torch.randn(1, head_dim, rounds, seq_len // chunk_size // 2).transpose(1, 2)
    buckets = hash_buckets(q[:, None], rotations)
    ours = lsh_attention(q[:, None], v[:, None], buckets, chunk_size=chunk_size)[:, 0]
    # The package lets a round's first chunk look back at the last chunk of the round before, as if they were
    # neighbours; in ours nothing lies before it. Compare what is in no round's first chunk.
    rank = buckets.argsort(dim=-1, stable=True).argsort(dim=-1)[:, 0]
    inside = (rank >= chunk_size).all(dim=1)
    assert inside.float().mean() > 0.5
    torch.testing.assert_close(ours[inside], expected[inside], atol=1e-5, rtol=1e-4)
