"""Names and settings of attentions."""

import pytest
import torch
from torch import Tensor

from models import MultiHeadAttention, UnknownAttention, build_attention, list_attentions, register_attention
from models import registry as registry_module


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
    ("name", "settings", "message"),
    [
        ("rfaa", {}, "unknown attention 'rfaa'; did you mean 'rfa'"),
        ("rfa", {"num_feature": 3}, "no setting 'num_feature'; did you mean 'num_features'"),
        ("rfa", {"num_features": "many"}, "num_features = 'many'"),
        ("softmax", {"num_features": 3}, "no setting 'num_features'; it has none"),
    ],
)
def test_wrong_names_and_values(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownAttention, match=message):
        build_attention(name, 8, 2, 16, **settings)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(ValueError, match="dim 10 is not divisible by num_heads 4"):
        build_attention("softmax", 10, 4, 16)
