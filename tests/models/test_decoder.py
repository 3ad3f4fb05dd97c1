"""Attention that looks back alone, cross attention, and the decoder built on them."""

import pytest
import torch
from torch import Tensor

from models import MultiHeadAttention, build_attention, build_decoder, list_attentions
from models.ops.causal_linear_attention import LinearState
from models.ops.softmax_attention import KeyValues

from .helpers import shaken

DIM, HEADS, MAX_LEN = 16, 2, 40
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "softmax": ("softmax", {}),
    "sdpa": ("sdpa", {}),
    "linear": ("linear", {}),
    "rfa": ("rfa", {}),
    "rfa-arccos": ("rfa", {"kernel": "arccos"}),
    "rfa-gate": ("rfa", {"gate": True}),
    "rfa-gate-arccos": ("rfa", {"gate": True, "kernel": "arccos"}),
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def layer(variant: str) -> MultiHeadAttention:
    torch.manual_seed(1)
    name, settings = VARIANTS[variant]
    built = build_attention(name, DIM, HEADS, MAX_LEN, **settings).eval().double()
    assert isinstance(built, MultiHeadAttention)
    return built


def inputs(seq_len: int) -> Tensor:
    return torch.randn(2, seq_len, DIM, dtype=torch.float64)


@each_variant
def test_one_pass_is_token_by_token(variant: str) -> None:
    attention, x = layer(variant), inputs(MAX_LEN)
    whole, nothing = attention.causal(x)
    assert nothing is None
    state, outputs = None, []
    for t in range(MAX_LEN):
        y, state = attention.causal(x[:, t : t + 1], state, keep_state=True)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole)


@each_variant
@pytest.mark.parametrize("cut", [1, 13, 39])
def test_segments_with_a_carried_state_are_one(variant: str, cut: int) -> None:
    attention, x = layer(variant), inputs(MAX_LEN)
    first, state = attention.causal(x[:, :cut], keep_state=True)
    second, _ = attention.causal(x[:, cut:], state, keep_state=True)
    torch.testing.assert_close(torch.cat((first, second), dim=1), attention.causal(x)[0])


@each_variant
def test_no_output_depends_on_a_later_token(variant: str) -> None:
    attention, x = layer(variant), inputs(20)
    y, _ = attention.causal(x)
    for t in (0, 7, 19):
        changed = x.clone()
        changed[:, t] += 1.0
        other, _ = attention.causal(changed)
        torch.testing.assert_close(other[:, :t], y[:, :t], atol=0, rtol=0)
        assert not torch.allclose(other[:, t], y[:, t])


@each_variant
def test_the_last_token_sees_what_an_encoder_s_sees(variant: str) -> None:
    if "gate" in variant:
        with pytest.raises(TypeError, match="looks back alone"):
            layer(variant)(inputs(5))
        return
    attention, x = layer(variant), inputs(20)
    torch.testing.assert_close(attention.causal(x)[0][:, -1], attention(x)[:, -1])


def test_gates_forget() -> None:
    attention, x = layer("rfa-gate"), inputs(20)
    changed = x.clone()
    changed[:, 0] += 1.0
    with torch.no_grad():
        moved = []
        for bias in (-20.0, 5.0):  # g near 0: only the newest token is left
            attention.gate.bias.fill_(bias)  # type: ignore[union-attr, operator]
            moved.append((attention.causal(x)[0] - attention.causal(changed)[0])[:, -1].abs().max())
    assert moved[0] < 1e-12
    assert moved[1] > 1e-6


@each_variant
def test_cross_attention_ignores_padding_and_order_of_the_memory(variant: str) -> None:
    attention, x, memory = layer(variant), inputs(6), inputs(15)
    mask = torch.arange(15) >= torch.tensor([15, 4])[:, None]
    y = attention.cross(x, attention.remember(memory, mask))
    assert y.shape == x.shape
    order = torch.randperm(15)
    other = attention.remember(memory.masked_fill(mask.unsqueeze(-1), 9.0)[:, order], mask[:, order])
    torch.testing.assert_close(attention.cross(x, other), y)
    # Query by query from the same memory, as a decoder asks.
    remembered = attention.remember(memory, mask)
    alone = torch.cat([attention.cross(x[:, t : t + 1], remembered) for t in range(6)], dim=1)
    torch.testing.assert_close(alone, y)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "gate" not in v])
def test_cross_attention_to_itself_is_self_attention(variant: str) -> None:
    attention, x = layer(variant), inputs(12)
    torch.testing.assert_close(attention.cross(x, attention.remember(x)), attention(x))


def test_the_state_of_rfa_does_not_grow_and_that_of_softmax_is_made_once() -> None:
    x = inputs(MAX_LEN)
    for variant in ("rfa", "softmax"):
        attention, state, shapes, places = layer(variant), None, set(), set()
        for t in range(MAX_LEN):
            _, state = attention.causal(x[:, t : t + 1], state, keep_state=True)
            assert isinstance(state, LinearState | KeyValues)
            shapes.add(state[0].shape)
            places.add(state[0].data_ptr())
        assert len(shapes) == 1
        if variant == "softmax":
            assert len(places) == 1
            with pytest.raises(ValueError, match=f"at most {MAX_LEN}"):
                attention.causal(x[:, :1], state, keep_state=True)


def test_variants_without_a_causal_form_say_so() -> None:
    without = set(list_attentions()) - {"softmax", "sdpa", "rfa", "linear"}
    assert {"linformer", "performer", "reformer"} <= without
    for name in ("linformer", "performer", "reformer"):
        with pytest.raises(TypeError, match="no causal form"):
            build_decoder(name, vocab_size=9, max_len=16)
        attention = build_attention(name, DIM, HEADS, MAX_LEN)
        assert isinstance(attention, MultiHeadAttention)
        with pytest.raises(TypeError, match="no causal form"):
            attention.causal(torch.randn(1, 4, DIM))
        with pytest.raises(TypeError, match="no cross attention"):
            attention.remember(torch.randn(1, 4, DIM))


@each_variant
def test_generation_is_the_argmax_of_the_whole_pass(variant: str) -> None:
    torch.manual_seed(0)
    name, settings = VARIANTS[variant]
    model = shaken(build_decoder(name, vocab_size=11, max_len=30, dim=DIM, num_heads=HEADS, mlp_dim=16, **settings))
    prompt = torch.randint(11, (3, 4))
    tokens = model.generate(prompt, steps=20)
    assert tokens.shape == (3, 24)
    assert (tokens[:, 4:] != tokens[:, 3:-1]).any(dim=1).all()
    assert torch.equal(tokens[:, :4], prompt)
    logits, _ = model(tokens)
    assert torch.equal(logits[:, 3:-1].argmax(-1), tokens[:, 4:])
    with pytest.raises(ValueError, match="at most 30"):
        model.generate(prompt, steps=40)


@each_variant
def test_a_model_in_training_generates_as_in_evaluation_and_stays_in_training(variant: str) -> None:
    torch.manual_seed(0)
    name, settings = VARIANTS[variant]
    model = build_decoder(name, vocab_size=300, max_len=30, dim=DIM, num_heads=HEADS, dropout=0.5, **settings)
    prompt = torch.randint(300, (3, 4))
    tokens = model.generate(prompt, steps=20)
    assert all(module.training for module in model.modules())
    assert torch.equal(model.eval().generate(prompt, steps=20), tokens)
    model.train()
    with pytest.raises(ValueError, match="at most 30"):
        model.generate(prompt, steps=40)
    assert model.training


@each_variant
def test_a_decoder_learns_to_copy_what_it_saw(variant: str) -> None:
    torch.manual_seed(0)
    name, settings = VARIANTS[variant]
    model = build_decoder(
        name, vocab_size=9, max_len=16, dim=32, num_heads=2, mlp_dim=64, dropout=0.0, attention_dropout=0.0, **settings
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        first = torch.randint(1, 9, (32, 1)).expand(-1, 16)  # the token to repeat
        logits, _ = model(first[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), first[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
