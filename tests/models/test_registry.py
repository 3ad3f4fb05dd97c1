"""Names and settings of attentions."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models import (
    MultiHeadAttention,
    UnknownAttention,
    attention_forms,
    build_attention,
    build_classifier,
    build_decoder,
    build_encoder,
    build_translator,
    list_attentions,
    register_attention,
)
from models import registry as registry_module
from models.attention.softmax import SoftmaxAttention
from models.registry import attention_settings


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_ATTENTIONS", dict(registry_module._ATTENTIONS))


def test_the_three_are_there() -> None:
    assert {"softmax", "sdpa", "rfa"} <= set(list_attentions())


def test_one_class_is_a_new_attention() -> None:
    @register_attention("mean")
    class Mean(MultiHeadAttention):
        def __init__(self, dim: int, num_heads: int, max_len: int, *, power: float = 1.0, **shared: object) -> None:
            super().__init__(dim, num_heads, max_len, **shared)  # type: ignore[arg-type]
            self.power = power

        def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
            return v.mean(dim=2, keepdim=True).expand_as(v) ** self.power

    layer = build_attention("mean", 8, 2, 16, power=2)
    assert isinstance(layer, Mean)
    assert layer.power == 2.0
    assert layer(torch.randn(1, 4, 8)).shape == (1, 4, 8)
    with pytest.raises(ValueError, match="'mean' is already registered"):
        register_attention("mean")(Mean)


@pytest.mark.parametrize(
    "change",
    [lambda v: v.mean(2, keepdim=True), lambda v: v[:, :, 1:], lambda v: (v, None)],
    ids=["broadcasts", "too short", "two things"],
)
def test_an_attention_returns_what_it_says(change: Callable[[Tensor], Tensor]) -> None:
    @register_attention("wrong")
    class Wrong(MultiHeadAttention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
            return change(v)

    with pytest.raises(ValueError, match=r"Wrong returned .*; expected \[1, 2, 4, 4\], as of the queries"):
        build_attention("wrong", 8, 2, 16)(torch.randn(1, 4, 8))


@pytest.mark.parametrize("change", [lambda x: x.mean(1, keepdim=True), lambda x: (x, None)], ids=["broadcasts", "pair"])
def test_so_does_any_other_module(change: Callable[[Tensor], Tensor]) -> None:
    @register_attention("wrong")
    class Wrong(nn.Module):
        def __init__(self, dim: int, num_heads: int, max_len: int, **shared: Any) -> None:
            super().__init__()

        def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            return change(x)

        def causal(self, x: Tensor, state: Any = None, keep_state: bool = False) -> tuple[Tensor, Any]:
            return change(x), None

    tokens = torch.ones(1, 4, dtype=torch.long)
    for build in (build_encoder, build_decoder):
        model = build("wrong", vocab_size=2, max_len=4, dim=8)
        with pytest.raises(ValueError, match=r"Wrong returned .*; expected \[1, 4, 8\], as of the inputs"):
            model(tokens)


def test_any_module_with_the_same_face_will_do() -> None:
    @register_attention("torch's own")
    class Own(nn.Module):
        def __init__(self, dim: int, num_heads: int, max_len: int, *, dropout: float, bias: bool) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(dim, num_heads, dropout, bias, batch_first=True)

        def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
            return self.inner(x, x, x, key_padding_mask=padding_mask, need_weights=False)[0]

    assert attention_forms("torch's own", {}) == {"encoder"}
    model = build_classifier("torch's own", vocab_size=9, num_classes=2, max_len=16, dim=8, num_heads=2, num_layers=2)
    model.eval()  # without dropout
    tokens = torch.randint(1, 9, (3, 16))
    mask = torch.arange(16).expand(3, 16) >= 10
    logits = model(tokens, padding_mask=mask)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model(torch.where(mask, 3, tokens), padding_mask=mask), logits)


def test_any_module_with_a_causal_face_is_a_language_model() -> None:
    """Here a moving average, whose state is its last value; nor has it a form for encoders."""

    @register_attention("average")
    class Average(nn.Module):
        def __init__(self, dim: int, num_heads: int, max_len: int, *, dropout: float, bias: bool) -> None:
            super().__init__()
            self.decay = nn.Parameter(torch.zeros(dim))

        def causal(self, x: Tensor, state: Any = None, keep_state: bool = False) -> tuple[Tensor, Any]:
            decay, outputs = self.decay.sigmoid(), []
            y = torch.zeros_like(x[:, 0]) if state is None else state
            for token in x.unbind(1):
                y = decay * y + (1 - decay) * token
                outputs.append(y)
            return torch.stack(outputs, 1), y if keep_state else None

    @register_attention("its own causal")
    class OwnCausal(MultiHeadAttention):
        attend = causal = None  # type: ignore[assignment]

    assert attention_forms("average", {}) == {"causal"}
    assert attention_forms("its own causal", {}) == {"encoder", "causal"}
    model = build_decoder("average", vocab_size=9, max_len=16, dim=8, num_heads=2, num_layers=2).eval()
    tokens = model.generate(torch.randint(1, 9, (3, 4)), steps=5)
    logits, _ = model(tokens)
    assert torch.equal(logits[:, 3:-1].argmax(-1), tokens[:, 4:])
    with pytest.raises(TypeError, match="attention 'average' has no cross form"):
        build_translator("average", vocab_size=9, max_len=8)


@pytest.mark.parametrize("resolved", [True, False], ids=["types", "types that only type checkers know"])
def test_what_is_a_setting(resolved: bool) -> None:
    class Lists(MultiHeadAttention):
        # By place, whatever the first three are called; what JSON cannot hold is left to the class.
        def __init__(  # type: ignore[no-untyped-def]
            self,
            width,
            heads,
            length,
            power: float = 1.0,
            *,
            t: Tensor | None = None,
            f=torch.relu,
            top=math.inf,
            **shared,
        ) -> None:
            super().__init__(width, heads, length, **shared)
            self.given = (power, t, f, top)

        def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
            return v

    if not resolved:
        Lists.__init__.__annotations__["t"] = "Unknown"
    register_attention("lists")(Lists)
    assert list(attention_settings("lists").model_fields) == ["power", "t"]
    layer = build_attention("lists", 8, 2, 16, dropout=0.5, power=2)
    assert isinstance(layer, Lists)
    assert (layer.dim, layer.num_heads, layer.max_len, layer.dropout) == (8, 2, 16, 0.5)
    assert layer.given == (2.0, None, torch.relu, math.inf)


def test_a_base_class_gives_its_settings_where_they_can_be_given() -> None:
    class Ranked(SoftmaxAttention):
        def __init__(self, *sizes: int, rank: int = 1, **shared: Any) -> None:
            super().__init__(*sizes, **shared)

    @register_attention("open")
    class Open(Ranked):
        def __init__(self, *sizes: int, width: int = 2, **shared: Any) -> None:
            super().__init__(*sizes, **shared)

    @register_attention("closed")
    class Closed(Ranked):
        def __init__(self, *sizes: int, width: int = 2, dropout: float = 0.0, bias: bool = True) -> None:
            super().__init__(*sizes, dropout=dropout, bias=bias)

    assert list(attention_settings("open").model_fields) == ["width", "rank"]
    assert list(attention_settings("closed").model_fields) == ["width"]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("rfaa", {}, "unknown attention 'rfaa'; did you mean 'rfa'"),
        ("rfa", {"num_feature": 3}, "no setting 'num_feature'; did you mean 'num_features'"),
        ("rfa", {"num_features": "many"}, "num_features = 'many'"),
        ("rfa", {"temperature": math.inf}, "temperature = inf: input should be a finite number"),
        ("softmax", {"num_features": 3}, "no setting 'num_features'; it has none"),
    ],
)
def test_wrong_names_and_values(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownAttention, match=message):
        build_attention(name, 8, 2, 16, **settings)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(ValueError, match="dim 10 is not divisible by num_heads 4"):
        build_attention("softmax", 10, 4, 16)


@pytest.mark.parametrize("sizes", [(0, 1, 4), (8, 0, 4), (8, 2, 0), (8, -2, 4)])
def test_sizes_are_positive(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected positive numbers"):
        build_attention("linformer", *sizes)
