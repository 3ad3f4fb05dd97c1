"""One token by the fused kernel is one token by the layer: here in Triton's interpreter, on a card in test_cuda.py.

Triton comes with torch's builds for a card; where it is missing there is nothing to interpret.
"""

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from lra_bench import ROOT
from models import MultiHeadAttention, build_attention
from models.ops import decoding_step as fused
from models.ops.causal_linear_attention import LinearState

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("rfa", {}),
    ("rfa", {"gate": True, "temperature": 0.5}),
    ("rfa", {"kernel": "arccos", "num_features": 24}),
    ("rfa", {"kernel": "arccos", "gate": True}),
    ("rfa", {"num_features": 1, "bias": False}),
    ("linear", {}),
]
SHAPES = [(32, 4), (36, 3), (6, 6)]  # dim and heads


def check_fused(
    name: str,
    settings: dict[str, Any],
    dim: int,
    heads: int,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
    bf16: bool = False,
) -> None:
    """Generations with the fused step are those without it, after a prompt as well, of extreme values as well.

    bf16: the fused ones under autocast, held against float32 without it.
    """
    torch.manual_seed(0)
    layer = build_attention(name, dim, heads, 64, **settings).to(device).eval()
    assert isinstance(layer, MultiHeadAttention)
    if hasattr(layer, "sigma"):
        torch.nn.init.uniform_(layer.sigma, 0.5, 1.5)
    calls = 0

    def counted(*arguments: Any) -> tuple[Tensor, LinearState]:
        nonlocal calls
        calls += 1
        return step(*arguments)

    step = fused.decoding_step
    for module in ("rfa", "linear"):
        monkeypatch.setattr(f"models.attention.{module}.decoding_step", counted)
    results = []
    for fuse in (False, True):
        autocast = bf16 and fuse
        for module in ("rfa", "linear"):
            monkeypatch.setattr(
                f"models.attention.{module}.decodes_fused", lambda q, _, on=fuse: on and q.shape[2] == 1
            )
        torch.manual_seed(1)
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=autocast):
            outputs: list[Tensor] = []
            for prompt in (0, 5):
                x, state = torch.randn(2, prompt, dim, device=device), None
                if prompt:
                    _, state = layer.causal(x, None, keep_state=True)
                for scale in (1.0, 1.0, 0.0, 1e4, 1e-6, 1.0):
                    y, state = layer.causal(scale * torch.randn(2, 1, dim, device=device), state, keep_state=True)
                    outputs.append(y)
                outputs += list(state)
        results.append(outputs)
    assert calls == 12
    for ours, theirs in zip(*reversed(results), strict=True):
        assert ours.shape == theirs.shape
        tolerance = 2e-2 if bf16 else 1e-5
        torch.testing.assert_close(
            ours.float(), theirs, rtol=10 * tolerance, atol=tolerance * max(1.0, theirs.abs().max().item())
        )


def check_all() -> None:
    """What the interpreter can run; told before each case, so that it is known which one fails."""
    cases = [(*shape, False) for shape in SHAPES] + [(64, 2, True)]
    for (name, settings), (dim, heads, bf16) in itertools.product(SETTINGS, cases):
        print(name, settings, dim, heads, bf16, flush=True)
        with pytest.MonkeyPatch.context() as monkeypatch:
            check_fused(name, settings, dim, heads, "cpu", monkeypatch, bf16)
    print("all checked")


def test_a_fused_step_is_the_step_in_the_interpreter() -> None:
    pytest.importorskip("triton", reason="not part of torch's builds without CUDA")
    command = [sys.executable, "-c", f"from {__name__} import check_all; check_all()"]
    own = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=600)
    assert done.stdout.endswith("all checked\n"), done.stdout + done.stderr


@pytest.mark.parametrize("reason", ["a processor", "float64", "gradients", "two tokens", "a large state"])
def test_what_is_not_for_the_fused_step(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "has_triton", lambda: True)

    class Card(Tensor):
        is_cuda = property(lambda self: reason != "a processor")  # type: ignore[assignment]

    q = torch.zeros(1, 1, 2 if reason == "two tokens" else 1, 64, dtype=torch.float64 if reason == "float64" else None)
    with torch.set_grad_enabled(reason == "gradients"):
        assert not fused.decodes_fused(q.as_subclass(Card), 512 if reason == "a large state" else 64)
    reason = ""
    with torch.no_grad():
        assert fused.decodes_fused(q[:, :, :1].float().as_subclass(Card), 64)
