"""What every registered attention must do, whatever its mathematics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import build_attention, build_classifier, list_attentions
from models.ops.softmax_attention import softmax_attention

DIM, HEADS, MAX_LEN = 16, 2, 64
ATTENTIONS = list_attentions()


def layer(name: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(1)
    return build_attention(name, dim=DIM, num_heads=HEADS, max_len=MAX_LEN, **settings).eval()


def lengths_to_mask(lengths: list[int], seq_len: int) -> Tensor:
    return torch.arange(seq_len) >= torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", ATTENTIONS)
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=4), extra=st.integers(0, 30))
def test_more_padding_changes_nothing(name: str, lengths: list[int], extra: int) -> None:
    attention = layer(name)
    seq_len = max(lengths)
    x = torch.randn(len(lengths), seq_len, DIM)
    short = attention(x, padding_mask=lengths_to_mask(lengths, seq_len))
    # What lies under the mask must not matter either: fill it with large values.
    padded = torch.cat((x, torch.full((len(lengths), extra, DIM), 1e3)), dim=1)
    long = attention(padded, padding_mask=lengths_to_mask(lengths, seq_len + extra))
    for row, length in enumerate(lengths):
        torch.testing.assert_close(short[row, :length], long[row, :length], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_batch_row_does_not_depend_on_the_others(name: str) -> None:
    attention = layer(name)
    x = torch.randn(3, 10, DIM)
    mask = lengths_to_mask([10, 4, 7], 10)
    together = attention(x, padding_mask=mask)
    for row, length in enumerate((10, 4, 7)):
        alone = attention(x[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("seq_len", [1, 2, MAX_LEN])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("identical", [False, True])
def test_outputs_and_gradients_stay_finite(name: str, seq_len: int, scale: float, identical: bool) -> None:
    attention = layer(name).train()
    x = torch.randn(2, seq_len, DIM) * scale
    if identical:
        x = x[:, :1].expand(-1, seq_len, -1).clone()
    x.requires_grad_()
    y = attention(x, padding_mask=lengths_to_mask([seq_len, max(1, seq_len // 2)], seq_len))
    y.square().mean().backward()
    assert y.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_fully_padded_row_is_finite_and_harms_no_other(name: str) -> None:
    attention = layer(name)
    x = torch.randn(2, 8, DIM)
    y = attention(x, padding_mask=lengths_to_mask([0, 5], 8))
    assert y.isfinite().all()
    torch.testing.assert_close(y[1, :5], attention(x[1:, :5])[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_mask_of_numbers_or_of_another_shape_is_refused(name: str) -> None:
    x = torch.randn(2, 10, DIM)
    for mask in (torch.ones(2, 10), torch.ones(2, 10, dtype=torch.long)):
        with pytest.raises(TypeError, match=r"expected torch.bool, True = padding"):
            layer(name)(x, padding_mask=mask)
    for shape in ((1, 10), (2, 1), (10, 2)):
        with pytest.raises(ValueError, match=r"expected \[2, 10\], as of x"):
            layer(name)(x, padding_mask=torch.zeros(shape, dtype=torch.bool))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_batch_of_no_sequences(name: str) -> None:
    x = torch.randn(0, 10, DIM, requires_grad=True)
    y = layer(name)(x, padding_mask=torch.zeros(0, 10, dtype=torch.bool))
    y.sum().backward()
    assert y.shape == x.shape


@pytest.mark.parametrize("name", ATTENTIONS)
def test_state_dict_round_trip(name: str) -> None:
    torch.manual_seed(1)
    first = build_attention(name, dim=DIM, num_heads=HEADS, max_len=MAX_LEN).eval()
    torch.manual_seed(2)
    second = build_attention(name, dim=DIM, num_heads=HEADS, max_len=MAX_LEN).eval()
    x = torch.randn(2, 9, DIM)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_bfloat16_is_close_to_float32(name: str) -> None:
    attention = layer(name)
    x = torch.randn(2, 40, DIM)
    exact = attention(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = attention(x)
    torch.testing.assert_close(rounded.float(), exact, atol=1e-2, rtol=0)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_layer_of_half_precision_is_close_to_float32(name: str, dtype: torch.dtype) -> None:
    attention, x, mask = layer(name), torch.randn(2, 50, DIM), lengths_to_mask([50, 30], 50)
    expected = attention(x, padding_mask=mask)
    rounded = x.to(dtype).requires_grad_()
    y = attention.to(dtype)(rounded, padding_mask=mask)
    y.float().square().mean().backward()
    assert y.dtype == dtype
    assert rounded.grad is not None
    assert rounded.grad.isfinite().all()
    # Reformer's buckets may differ by rounding: most rows are close, not all.
    difference = (y.float() - expected)[~mask].norm(dim=-1)
    assert difference.median() < 0.05 * expected[~mask].norm(dim=-1).median()


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients_in_float64(name: str) -> None:
    attention = layer(name).double()
    x = torch.randn(2, 5, DIM, dtype=torch.float64, requires_grad=True)
    mask = lengths_to_mask([5, 3], 5)

    def real_rows(x: Tensor) -> Tensor:
        return attention(x, padding_mask=mask)[~mask]

    assert torch.autograd.gradcheck(real_rows, (x,))


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_padding_never_changes_a_prediction(name: str, pooling: str, positions: str) -> None:
    model = build_classifier(
        name,
        vocab_size=20,
        num_classes=3,
        max_len=MAX_LEN,
        dim=DIM,
        num_heads=HEADS,
        mlp_dim=8,
        pooling=pooling,  # type: ignore[arg-type]
        positions=positions,
    ).eval()
    tokens = torch.randint(1, 20, (3, 12))
    lengths = [12, 1, 5]
    mask = lengths_to_mask(lengths, 12)
    tokens = tokens.masked_fill(mask, 0)
    wide = torch.nn.functional.pad(tokens, (0, 40))
    torch.testing.assert_close(model(tokens, mask), model(wide, lengths_to_mask(lengths, 52)), atol=1e-5, rtol=1e-4)


# Linformer's E has a column for every position, and Reformer's chunks depend on the order within a bucket.
@pytest.mark.parametrize("name", sorted(set(ATTENTIONS) - {"linformer", "reformer"}))
def test_attention_knows_no_order(name: str) -> None:
    attention = layer(name)
    x, order = torch.randn(2, 30, DIM), torch.randperm(30)
    torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order], atol=1e-5, rtol=1e-4)


def test_softmax_and_sdpa_agree() -> None:
    explicit, fused = layer("softmax"), layer("sdpa")
    fused.load_state_dict(explicit.state_dict())
    x = torch.randn(3, 50, DIM)
    mask = lengths_to_mask([50, 20, 1], 50)
    a, b = explicit(x, padding_mask=mask)[~mask], fused(x, padding_mask=mask)[~mask]
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_softmax_is_the_textbook_formula() -> None:
    attention = layer("softmax")
    x = torch.randn(1, 6, DIM)
    q, k, v = attention.qkv_proj(x).view(1, 6, 3, HEADS, DIM // HEADS).unbind(2)  # each [1, 6, heads, head_dim]
    expected = torch.zeros(1, 6, DIM)
    for head in range(HEADS):
        for t in range(6):
            weights = torch.stack([(q[0, t, head] * k[0, i, head]).sum() for i in range(6)]) / (DIM // HEADS) ** 0.5
            weights = weights.exp() / weights.exp().sum()
            mixed = sum(weights[i] * v[0, i, head] for i in range(6))
            expected[0, t, head * DIM // HEADS : (head + 1) * DIM // HEADS] = mixed
    torch.testing.assert_close(attention(x), attention.out_proj(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("before", [None, 0])
def test_explicit_softmax_takes_float32_under_bf16_autocast(before: int | None) -> None:
    """Its scores are bf16 then, into which float32's smallest number does not fit."""
    q, k, v = torch.randn(3, 2, HEADS, 8, 4).unbind(0)
    mask = lengths_to_mask([8, 5], 8)
    exact = softmax_attention(q, k, v, mask, before=before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = softmax_attention(q, k, v, mask, before=before)
    torch.testing.assert_close(rounded.float(), exact, atol=0.05, rtol=0.05)


def test_explicit_softmax_takes_float16_with_every_key_padded() -> None:
    """A score below -16 added to the least float16 would be -inf, and a row of them NaN."""
    q = torch.full((2, HEADS, 8, 4), 10.0, dtype=torch.float16)
    assert softmax_attention(q, -q, q, lengths_to_mask([0, 8], 8)).isfinite().all()
