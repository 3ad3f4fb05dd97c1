"""Fast steps of `make decode` are the layer's own: compiled ones, and the captured graph without a card."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.decode import disturbed, draw, generate, main
from benchmarks.decoding_steps import CapturedStep, build_step, for_inference, variants_of
from lra_bench.exits import exit_with
from models import MultiHeadAttention, build_attention, registry


class RecordedGraph(TorchDispatchMode):
    """As torch.cuda.CUDAGraph: keeps the operations of a capture with their memory, and runs them there again.

    What was captured counts as not yet run: memory that it changed in place gets its old values back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self.before.append((args[0], args[0].clone()))
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for tensor, values in reversed(self.before):
            tensor.copy_(values)

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            for kept, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if new is not kept:
                    kept.copy_(new)


VARIANTS = variants_of()
REGISTERED = dict(registry._ATTENTIONS)
each_compiled = pytest.mark.parametrize("name", [name for name in VARIANTS if name.endswith("compiled")])
# Attentions that `make decode` captures, and their settings.
CONSTANT_STATES = [("rfa", {}), ("rfa", {"gate": True}), ("linear", {})]


def check_captured(name: str, settings: dict[str, Any], device: torch.device) -> None:
    """Generations by a captured step are those by the layer itself."""
    torch.manual_seed(0)
    layer = build_attention(name, 32, 4, 64, **settings).to(device).eval()
    assert isinstance(layer, MultiHeadAttention)
    ran = 0

    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        nonlocal ran
        ran += 1
        return layer.causal(x, state, keep_state=True)

    captured = CapturedStep(step)
    with torch.inference_mode():
        for length in (6, 3, 9):  # one generation after another, the graph of the first one serves all
            x = expected = torch.randn(2, 1, 32, device=device)
            state = expected_state = None
            for token in range(length):
                x, state = captured(x, state)
                expected, expected_state = layer.causal(expected, expected_state, keep_state=True)
                assert torch.allclose(x, expected, atol=1e-5), (length, token)
                for ours, theirs in zip(state, expected_state, strict=True):
                    assert torch.allclose(ours, theirs, atol=1e-5)
    assert ran == 3 + 2  # the first token of each, one call before the capture and the capture


@pytest.mark.parametrize(("name", "settings"), CONSTANT_STATES)
def test_a_captured_step_is_the_step(name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.CUDAGraph", RecordedGraph)
    monkeypatch.setattr("torch.cuda.graph", lambda graph: graph)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    check_captured(name, settings, torch.device("cpu"))


def check_compiled(name: str, device: str) -> None:
    """Generations by a variant's compiled step are those by its eager one."""
    torch.compiler.reset()
    arguments = Namespace(dim=32, heads=4, device=device)
    eager, compiled = (build_step(VARIANTS[each], arguments, 12) for each in (name.removesuffix(" compiled"), name))
    with for_inference():
        x = torch.randn(2, 1, 32, device=device)
        for length in (5, 12):
            _, expected, expected_state = generate(eager, x, length)
            _, y, state = generate(compiled, x, length)
            torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(state, expected_state, strict=True):
        if name == "softmax compiled" and isinstance(ours, Tensor):
            ours, theirs = ours[:, :, :12], theirs[:, :, :12]  # what lies behind was never written
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@each_compiled
def test_a_compiled_step_is_the_step(name: str) -> None:
    check_compiled(name, "cpu")


@pytest.mark.parametrize("column", ["other_cpu_percent", "other_gpu_percent"])
def test_what_was_measured_beside_other_work_is_hollow(column: str, tmp_path: Path) -> None:
    rows = [{"length": n, "model": m, "speed_vs_softmax": 1.0, "memory_vs_softmax": 1.0, column: busy}
            for n, busy in ((64, 3.0), (128, 42.0), (256, None)) for m in ("softmax", "rfa")]  # fmt: skip
    frame = pd.DataFrame(rows)
    assert disturbed(frame).tolist() == [False, False, True, True, False, False]
    draw(tmp_path, frame, "decoding")
    assert "(hollow: others took" in (tmp_path / "decode.svg").read_text()
    draw(tmp_path, frame.assign(**{column: None}), "decoding")
    assert "hollow" not in (tmp_path / "decode.svg").read_text()


DECAYING = """
import torch
from models import MultiHeadAttention, register_attention
@register_attention("decaying")
class Decaying(MultiHeadAttention):
    def attend(self, q, k, v, padding_mask):
        return v
    def attend_causal(self, q, k, v, x, state, keep_state):
        outputs = []
        for token in v.unbind(2):
            state = [token + 0.5 * state[0] if state else token]
            outputs.append(state[0])
        return torch.stack(outputs, 2), state if keep_state else None
@register_attention("forgetting")
class Forgetting(Decaying):
    def attend_causal(self, q, k, v, x, state, keep_state):
        return super().attend_causal(q, k, v, x, None, keep_state)
@register_attention("one-sided")
class OneSided(MultiHeadAttention):
    def attend(self, q, k, v, padding_mask):
        return v
"""


def decode(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of the benchmark at a small size."""
    monkeypatch.setattr("models.registry._ATTENTIONS", dict(REGISTERED))
    monkeypatch.setattr("benchmarks.decode.keep_freed_memory", lambda: None)
    small = ("--dim", 16, "--heads", 2, "--batch", 2, "--lengths", "4,6", "--seconds", 0.01, "--rounds", 1)
    monkeypatch.setattr("sys.argv", ["decode", *map(str, small + arguments)])
    with pytest.raises(SystemExit) as end:
        exit_with(main)
    return int(str(end.value.code))


def test_an_attention_from_a_file_decodes_beside_softmax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(DECAYING)
    assert decode(monkeypatch, "--plugin", plugin, "--models", "decaying compiled,decaying", "--out", tmp_path) == 0
    frame = pd.read_csv(tmp_path / "decode.csv")
    assert frame["model"].tolist() == ["softmax", "sdpa", "decaying", "decaying compiled"] * 2
    held = frame.groupby("model")["memory_mb"].agg(list)
    assert held["softmax"][1] > held["softmax"][0]
    assert held["decaying"][1] == held["decaying"][0] >= 2 * 16 * 4 / 2**20
    assert decode(monkeypatch, "--models", "rfa compiled", "--out", tmp_path) == 0  # a curve without its eager one


def test_what_cannot_be_decoded_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused: dict[tuple[object, ...], str] = {
        ("--models", "rfaa"): "unknown model 'rfaa'; did you mean 'rfa' or ",
        ("--models", "forgetting"): "forgetting cannot decode: its causal form gives other outputs",
        ("--models", "one-sided"): "unknown model 'one-sided'; did you mean ",
        ("--heads", 3): "dim 16 is not divisible by num_heads 3",
        ("--lengths", "64,x"): "'x' is not a positive whole number",
        ("--rounds", 0): "'0' is not a positive whole number",
        ("--device", "tpu"): "unknown device 'tpu'; expected auto, cpu or cuda",
        ("--models", "decaying", "--out", __file__): f"{__file__}: File exists",
    }
    for number, (arguments, message) in enumerate(refused.items()):
        plugin = tmp_path / f"{number}.py"  # a file that was loaded is not loaded again
        plugin.write_text(DECAYING)
        assert decode(monkeypatch, "--plugin", plugin, "--out", tmp_path, *arguments) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
