"""torch.compile changes nothing but the time."""

import subprocess
import sys

import pytest
import torch

from models import build_attention, build_encoder, list_attentions
from models.attention.performer import PerformerAttention
from models.encoder import Block


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in list_attentions()), ("rfa", {"kernel": "arccos"}), ("performer", {"kernel": "relu"})],
)
def test_compiled_equals_eager(name: str, settings: dict[str, str]) -> None:
    torch.manual_seed(0)
    layer = build_attention(name, dim=32, num_heads=2, max_len=160, **settings).eval()  # nothing is drawn
    mask = torch.arange(160) >= torch.tensor([160, 70])[:, None]
    x = torch.randn(2, 160, 32)
    weights = torch.randn_like(x).masked_fill(mask.unsqueeze(-1), 0.0)

    def outputs() -> list[torch.Tensor]:
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        y = layer(inputs, padding_mask=mask)
        (y * weights).sum().backward()
        assert inputs.grad is not None
        return [y[~mask], inputs.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]

    eager = outputs()
    layer.compile(dynamic=False)
    for a, b in zip(outputs(), eager, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", list_attentions())
def test_a_block_is_one_graph_compiled_once(name: str) -> None:
    # Without dropout, which on a CPU cuts it.
    block = Block(build_attention(name, dim=32, num_heads=2, max_len=64), 32, 64, dropout=0.0).train()
    block.compile(dynamic=False, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 64, 32)
    first, second = block(x, None), block(x, None)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(5):
            block(x, None)
    if name == "rfa":
        assert not torch.equal(first, second)  # other random matrices at every pass, compiled or not
    if isinstance(block.attention, PerformerAttention):
        assert block.attention.passes == 7


def test_a_compiled_model_still_redraws() -> None:
    model = build_encoder("performer", vocab_size=9, max_len=16, redraw_every=4).train()
    model.compile(dynamic=False, backend="aot_eager")
    layer = model.blocks[0].attention
    assert isinstance(layer, PerformerAttention)
    first, tokens = layer.projection.clone(), torch.ones(2, 16, dtype=torch.long)
    model(tokens), model(tokens)
    with torch.compiler.set_stance("fail_on_recompile"):
        model(tokens)
        assert torch.equal(layer.projection, first)
        model(tokens)
    assert not torch.equal(layer.projection, first)


def test_the_compiler_is_imported_only_where_something_is_compiled() -> None:
    code = "import sys, models, lra_bench.sweep; assert 'torch' in sys.modules and 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
