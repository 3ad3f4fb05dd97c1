"""Options of the linear transformer, Linformer, Performer, Reformer and RFA, against plain formulas."""

import pytest
import torch
from torch.nn import functional as F

from models import build_attention, build_encoder
from models.attention.linformer import LinformerAttention
from models.attention.performer import PerformerAttention
from models.attention.rfa import RandomFeatureAttention
from models.encoder import Block
from models.ops.feature_maps import arccos_features, elu_features, positive_features
from models.ops.linear_attention import linear_attention_naive


def heads(layer: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch, seq_len, _ = x.shape
    return layer.qkv_proj(x).view(batch, seq_len, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)  # type: ignore[operator]


def joined(layer: torch.nn.Module, mixed: torch.Tensor) -> torch.Tensor:
    return layer.out_proj(mixed.transpose(1, 2).reshape(len(mixed), -1, 32))  # type: ignore[operator]


X = torch.randn(2, 30, 32, generator=torch.Generator().manual_seed(0))
MASK = torch.arange(30) >= torch.tensor([30, 11])[:, None]


def test_linear_transformer_is_the_quadratic_formula() -> None:
    layer = build_attention("linear", 32, 4, 64)
    q, k, v = heads(layer, X)
    expected = linear_attention_naive(elu_features(q), elu_features(k), v, MASK, eps=1e-6)
    torch.testing.assert_close(layer(X, padding_mask=MASK), joined(layer, expected), atol=1e-5, rtol=1e-4)


def test_linear_transformer_returns_a_single_key_however_faint() -> None:
    layer = build_attention("linear", 32, 4, 64)
    v = torch.randn(1, 4, 1, 8)
    faint = torch.full((1, 4, 1, 8), -2.0)
    torch.testing.assert_close(layer.attend(faint, faint, v, None), v, atol=1e-5, rtol=1e-4)  # type: ignore[operator]


@pytest.mark.parametrize("sharing", ["none", "key-value"])
def test_linformer_is_its_formula(sharing: str) -> None:
    layer = build_attention("linformer", 32, 4, 64, k=6, sharing=sharing).eval()
    assert isinstance(layer, LinformerAttention)
    assert (layer.key_projection is layer.value_projection) == (sharing == "key-value")
    q, k, v = heads(layer, X)
    e, f = layer.key_projection, layer.value_projection
    expected = torch.zeros_like(q)
    for row, length in enumerate((30, 11)):
        keys, values = e[:, :length] @ k[row, :, :length], f[:, :length] @ v[row, :, :length]
        expected[row] = (q[row] @ keys.transpose(-1, -2) / 8**0.5).softmax(-1) @ values
    torch.testing.assert_close(layer(X, padding_mask=MASK), joined(layer, expected), atol=1e-5, rtol=1e-4)


def test_linformer_layerwise_has_one_projection_for_all_layers() -> None:
    def size(sharing: str) -> int:
        encoder = build_encoder("linformer", vocab_size=9, max_len=64, num_layers=3, k=6, sharing=sharing)
        return sum(p.numel() for p in encoder.parameters())

    one = 6 * 64
    assert size("none") - size("layerwise") == 5 * one
    assert size("none") - size("key-value") == 3 * one
    encoder = build_encoder("linformer", vocab_size=9, max_len=64, num_layers=3, k=6, sharing="layerwise")
    other = build_encoder("linformer", vocab_size=9, max_len=64, num_layers=3, k=6, sharing="layerwise")
    other.load_state_dict(encoder.state_dict())
    tokens = torch.randint(9, (2, 20))
    assert torch.equal(encoder.eval()(tokens)[0], other.eval()(tokens)[0])
    encoder(tokens)[0].sum().backward()
    projections = {id(p) for name, p in encoder.named_parameters(remove_duplicate=False) if "_projection" in name}
    assert len(projections) == 1


@pytest.mark.parametrize("num_features", [1, 16, 100, 512])
def test_rfa_has_the_width_asked_for(num_features: int) -> None:
    layer = build_attention("rfa", 32, 4, 64, num_features=num_features, orthogonal=True)
    assert layer.pool.shape == (500, num_features, 8)
    assert layer(X, padding_mask=MASK).isfinite().all()


def test_linformer_projects_to_no_more_rows_than_there_are_positions() -> None:
    layer = build_attention("linformer", 32, 4, 40)
    assert isinstance(layer, LinformerAttention)
    assert layer.key_projection.shape == (40, 40)


def test_linformer_refuses_what_is_longer_than_its_projection() -> None:
    with pytest.raises(ValueError, match="sequence of 41 tokens; this Linformer takes at most 40"):
        build_attention("linformer", 32, 4, 40)(torch.randn(1, 41, 32))


def test_performer_is_the_quadratic_formula_from_the_same_features() -> None:
    layer = build_attention("performer", 32, 4, 64, num_features=64).eval()
    assert isinstance(layer, PerformerAttention)
    q, k, v = heads(layer, X)
    phi_q = positive_features(q, layer.projection)
    phi_k = positive_features(k, layer.projection, MASK, per_row=False)
    expected = linear_attention_naive(phi_q, phi_k, v, MASK, eps=1e-6)
    torch.testing.assert_close(layer(X, padding_mask=MASK), joined(layer, expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "matrices"), [("performer", "projection"), ("rfa", "pool")])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_rows_are_orthogonal_in_blocks_of_head_dim_where_that_is_asked_for(
    name: str, matrices: str, orthogonal: bool
) -> None:
    layer = build_attention(name, 32, 4, 64, num_features=16, orthogonal=orthogonal)
    blocks = F.normalize(layer.get_buffer(matrices).view(-1, 8, 8), dim=-1)
    overlap = (blocks @ blocks.transpose(-1, -2) - torch.eye(8)).abs().max().item()
    assert (overlap < 1e-5) is orthogonal


def test_buckets_of_reformer_fill_chunks_unless_their_number_is_said() -> None:
    def buckets(max_len: int, **settings: int) -> int:
        layer = build_attention("reformer", 32, 4, max_len, **settings)
        assert layer.qkv_proj.out_features == 64  # type: ignore[union-attr]  # one projection for queries and keys
        return 2 * layer.rotations.shape[-1]  # type: ignore[union-attr, operator]

    assert buckets(4096) == 64  # chunks of 64
    assert buckets(4097) == 66
    assert buckets(4096, chunk_size=32) == 128
    assert buckets(4096, num_buckets=6) == 6
    for wrong in (3, -2):
        with pytest.raises(ValueError, match=f"num_buckets is {wrong}; expected an even number"):
            buckets(64, num_buckets=wrong)


def test_performer_redraws_by_the_count_of_passes_which_is_saved() -> None:
    def block(redraw_every: int) -> tuple[Block, PerformerAttention]:
        layer = build_attention("performer", 32, 4, 64, redraw_every=redraw_every)
        assert isinstance(layer, PerformerAttention)
        return Block(layer, 32, 64, dropout=0.0), layer

    model, layer = block(3)
    first = layer.projection.clone()
    for _ in range(2):
        model.train()(X, None)
    model.eval()(X, None)
    assert torch.equal(layer.projection, first)
    other, layer = block(3)
    other.load_state_dict(model.state_dict())
    assert layer.passes == 2
    other.train()(X, None)
    assert not torch.equal(layer.projection, first)
    fixed, layer = block(0)
    first = layer.projection.clone()
    fixed.train()(X, None)
    assert torch.equal(layer.projection, first)


def test_performer_relu_kernel_runs_and_ignores_padding() -> None:
    layer = build_attention("performer", 32, 4, 64, kernel="relu").eval()
    changed = X.masked_fill(MASK[:, :, None], 7.0)
    same = layer(X, padding_mask=MASK)[~MASK], layer(changed, padding_mask=MASK)[~MASK]
    torch.testing.assert_close(*same, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_rfa_arccos_is_the_quadratic_formula(orthogonal: bool) -> None:
    layer = build_attention("rfa", 32, 4, 64, kernel="arccos", orthogonal=orthogonal).eval()
    assert isinstance(layer, RandomFeatureAttention)
    torch.nn.init.uniform_(layer.sigma, 0.5, 1.5)
    q, k, v = heads(layer, X)
    w = layer.pool[:4] * layer.sigma
    phi_q, phi_k = (arccos_features(u / (u.norm(dim=-1, keepdim=True) + 1e-3), w) for u in (q, k))
    expected = linear_attention_naive(phi_q, phi_k, v, MASK)
    torch.testing.assert_close(layer(X, padding_mask=MASK), joined(layer, expected), atol=1e-5, rtol=1e-4)


def test_rfa_without_redraw_or_learned_sigma() -> None:
    layer = build_attention("rfa", 32, 4, 64, redraw=False, learned_sigma=False)
    assert torch.equal(layer.train()(X), layer.eval()(X))
    softmax = build_attention("softmax", 32, 4, 64)
    trained, plain = (sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (layer, softmax))
    assert trained == plain
