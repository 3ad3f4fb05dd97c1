"""Encoder, pooling and heads."""

import pytest
import torch

from models import build_classifier, build_encoder
from models.encoder import sinusoidal_positions
from models.heads import mean_pool


def test_shapes_with_and_without_cls() -> None:
    tokens = torch.randint(1, 10, (2, 7))
    mask = torch.zeros(2, 7, dtype=torch.bool)
    hidden, out_mask = build_encoder("softmax", vocab_size=10, max_len=8)(tokens, mask)
    assert hidden.shape == (2, 7, 64)
    assert out_mask is mask
    hidden, out_mask = build_encoder("softmax", vocab_size=10, max_len=8, cls_token=True)(tokens, mask)
    assert hidden.shape == (2, 8, 64)
    assert out_mask is not None
    assert out_mask.shape == (2, 8)


def test_a_classifier_has_a_cls_token_where_it_reads_one() -> None:
    for pooling in ("mean", "cls"):
        model = build_classifier("softmax", vocab_size=10, num_classes=2, max_len=8, pooling=pooling)  # type: ignore[arg-type]
        assert (model.encoder.cls is not None) is (pooling == "cls")


def test_full_length_fits_with_cls_and_longer_is_refused() -> None:
    encoder = build_encoder("softmax", vocab_size=10, max_len=8, cls_token=True)
    encoder(torch.ones(1, 8, dtype=torch.long))
    with pytest.raises(ValueError, match="sequence of 9 tokens; this encoder takes at most 8"):
        encoder(torch.ones(1, 9, dtype=torch.long))


def test_mean_pool_leaves_padding_out_even_if_it_is_not_finite() -> None:
    hidden = torch.tensor([[[1.0], [3.0], [float("nan")]], [[5.0], [float("inf")], [0.0]]])
    mask = torch.tensor([[False, False, True], [False, True, True]])
    assert mean_pool(hidden, mask).tolist() == [[2.0], [5.0]]
    assert mean_pool(hidden, torch.ones(2, 3, dtype=torch.bool)).tolist() == [[0.0], [0.0]]


def test_sinusoidal_positions_are_the_formula() -> None:
    table = sinusoidal_positions(50, 6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    torch.testing.assert_close(table[7, 2], torch.sin(torch.tensor(7 / 10000 ** (2 / 6))))
    torch.testing.assert_close(table[7, 5], torch.cos(torch.tensor(7 / 10000 ** (4 / 6))))
    assert sinusoidal_positions(4, 5).shape == (4, 5)


def test_order_matters_to_the_encoder() -> None:
    model = build_classifier("softmax", vocab_size=10, num_classes=2, max_len=8).eval()
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-6)


def test_lra_text_size_matches_the_published_count() -> None:
    """3.487 M parameters, computed from the released configuration (without biases, CLS, 257 tokens)."""
    model = build_classifier(
        "softmax",
        vocab_size=257,
        num_classes=2,
        max_len=4000,
        dim=256,
        num_heads=4,
        num_layers=4,
        mlp_dim=1024,
        attention_bias=False,
        positions="sinusoidal",
        pooling="cls",
    )
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(3.487e6, rel=1e-3)


def test_padding_tokens_alone_give_a_finite_prediction() -> None:
    for name in ("softmax", "sdpa", "rfa"):
        model = build_classifier(name, vocab_size=10, num_classes=2, max_len=8).eval()
        tokens = torch.zeros(1, 4, dtype=torch.long)
        assert model(tokens, torch.ones(1, 4, dtype=torch.bool)).isfinite().all()


@pytest.mark.parametrize("name", ["softmax", "sdpa", "rfa"])
@pytest.mark.parametrize("head_layers", [2, 3])
def test_pairs_share_one_encoder_and_ignore_padding(name: str, head_layers: int) -> None:
    model = build_classifier(name, vocab_size=10, num_classes=2, max_len=40, num_inputs=2, head_layers=head_layers)  # type: ignore[arg-type]
    model.eval()
    a, b = torch.randint(1, 10, (2, 7)), torch.randint(1, 10, (2, 12))
    none = [torch.zeros(t.shape, dtype=torch.bool) for t in (a, b)]
    logits = model(a, none[0], b, none[1])
    assert logits.shape == (2, 2)
    wide = [torch.nn.functional.pad(t, (0, 20)) for t in (a, b)]
    masks = [torch.arange(w.shape[1]).expand(w.shape) >= t.shape[1] for t, w in zip((a, b), wide, strict=True)]
    torch.testing.assert_close(model(wide[0], masks[0], wide[1], masks[1]), logits, atol=1e-5, rtol=1e-4)
    assert torch.equal(model(a, None, b, None), logits)
    torch.testing.assert_close(model(a, None, a.flip(0), None), model(a, none[0], a.flip(0), none[0]))
    pooled = [model.pooled(t, m) for t, m in zip((a, b), none, strict=True)]
    features = torch.cat((pooled[0], pooled[1], pooled[0] * pooled[1], pooled[0] - pooled[1]), dim=-1)
    torch.testing.assert_close(model.head(features), logits, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(b, none[1], a, none[0]), logits, atol=1e-4)
    linears = [m for m in model.head if isinstance(m, torch.nn.Linear)]
    assert [m.out_features for m in linears] == ([128, 2] if head_layers == 2 else [128, 64, 2])
