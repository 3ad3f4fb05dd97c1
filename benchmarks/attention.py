"""One self-attention layer with its projections: ours beside softmax and the public packages, in one run.

Forward, and forward + backward, in float32, every layer in turn and the whole round again, so that a disturbance of
the machine falls on all of them; medians. Peak memory is what tensors held at once during forward + backward, inputs
and parameters left out. A package that is not installed or a layer that cannot have the memory gets a row that says so:

    pip install performer-pytorch linformer reformer-pytorch nystrom-attention linear-attention-transformer
    pip install --no-build-isolation pytorch-fast-transformers     (compiles C++; the slowest to install)
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median

import pandas as pd
import psutil
import torch
from torch import Tensor, nn

from lra_bench.exits import exit_with
from lra_bench.limits import free_memory
from lra_bench.machine import default_threads, describe_code, describe_machine
from lra_bench.memory import PeakMemory, keep_freed_memory, release_freed_memory
from lra_bench.options import find_device, split
from models import build_attention

from .arguments import add_plugin, check_known, count_of, counts_of, plugged

SHAPES = {"wide": (4, 512, 8), "compact": (32, 64, 2)}  # batch, dim, heads
OURS = ("softmax", "sdpa", "rfa", "rfa-arccos", "linear", "linformer", "performer", "reformer")
SETTINGS = {"rfa-arccos": ("rfa", {"kernel": "arccos"})}
Layer = Callable[[Tensor], Tensor]
Build = Callable[..., nn.Module]  # of dim, heads and seq_len


def _performer_pytorch(dim: int, heads: int, seq_len: int) -> Layer:
    from performer_pytorch import SelfAttention

    return SelfAttention(dim, heads=heads, dim_head=dim // heads, nb_features=256)


def _linformer(dim: int, heads: int, seq_len: int) -> Layer:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim, seq_len, k=256, heads=heads)


def _reformer_pytorch(dim: int, heads: int, seq_len: int) -> Layer:
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(dim, heads=heads, bucket_size=64, n_hashes=2)


def _nystrom_attention(dim: int, heads: int, seq_len: int) -> Layer:
    from nystrom_attention import NystromAttention

    return NystromAttention(dim, dim_head=dim // heads, heads=heads, num_landmarks=128)


def _linear_attention_transformer(dim: int, heads: int, seq_len: int) -> Layer:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return SelfAttention(dim, heads)


def _fast_transformers(features: str) -> Callable[[int, int, int], Layer]:
    def build(dim: int, heads: int, seq_len: int) -> Layer:
        from fast_transformers.attention import AttentionLayer, LinearAttention
        from fast_transformers.feature_maps import Favor, RandomFourierFeatures
        from fast_transformers.masking import FullMask, LengthMask

        # Equal widths of the feature map: 2 x 64 sines and cosines as RFA's, 256 as Performer's.
        maps = {
            "rff": RandomFourierFeatures.factory(n_dims=128, orthogonal=False),
            "favor": Favor.factory(n_dims=256),
        }
        layer = AttentionLayer(LinearAttention(dim // heads, feature_map=maps[features]), dim, heads)

        class SelfAttention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, x: Tensor) -> Tensor:
                lengths = LengthMask(torch.full((len(x),), seq_len), max_len=seq_len, device=x.device)
                return self.layer(x, x, x, FullMask(seq_len, device=x.device), lengths, lengths)

        return SelfAttention()

    return build


PEERS: dict[str, tuple[str, Callable[[int, int, int], Layer]]] = {
    "performer-pytorch": ("performer-pytorch", _performer_pytorch),
    "linformer (package)": ("linformer", _linformer),
    "reformer-pytorch": ("reformer-pytorch", _reformer_pytorch),
    "nystrom-attention": ("nystrom-attention", _nystrom_attention),
    "linear-attention-transformer": ("linear-attention-transformer", _linear_attention_transformer),
    "fast-transformers RFF": ("pytorch-fast-transformers", _fast_transformers("rff")),
    "fast-transformers FAVOR": ("pytorch-fast-transformers", _fast_transformers("favor")),
}

# After two rounds no further one is begun once so much time is spent on a length.
SECONDS_PER_LENGTH = 120.0

COLUMNS = "shape seq_len layer status forward_ms forward_backward_ms peak_memory_mb speed_vs_softmax".split()


class Timed:
    """One layer and its times in seconds."""

    def __init__(self, layer: nn.Module, x: Tensor, compiled: bool) -> None:
        self.layer, self.x, self.grad = layer.to(x.device).train(), x, torch.randn_like(x)
        if compiled:
            self.layer.compile(dynamic=False)
        self.forward_times: list[float] = []
        self.total_times: list[float] = []
        self.call()
        self._clear()
        with PeakMemory(x.device) as memory:
            self.call()
        self.memory_mb = memory.allocated_mb
        self._clear()
        release_freed_memory()

    def call(self) -> tuple[float, float]:
        """Seconds of a forward pass, and of it and the backward pass together."""
        self._clear()
        _wait(self.x.device)
        started = time.perf_counter()
        y = self.layer(self.x)
        _wait(self.x.device)
        forward = time.perf_counter() - started
        y.backward(self.grad)
        _wait(self.x.device)
        return forward, time.perf_counter() - started

    def _clear(self) -> None:
        self.x.grad = None
        self.layer.zero_grad(set_to_none=True)

    def round(self) -> None:
        """Add one measurement, from memory as a training step finds it: kept from the step before."""
        self.call()
        forward, total = self.call()
        self.forward_times.append(forward)
        self.total_times.append(total)
        self._clear()
        release_freed_memory()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _needs(name: str, batch: int, heads: int, seq_len: int) -> int:
    """Bytes of the explicit matrices of weights: scores, weights, and their gradients."""
    return 4 * 4 * batch * heads * seq_len**2 if name == "softmax" else 0


def layers_of(own: Iterable[str]) -> dict[str, Build]:
    """What can be measured, by name: ours and plugins' attentions, as they are and compiled, and the packages."""
    layers: dict[str, Build] = {}
    for name in (*OURS, *own):
        attention, settings = SETTINGS.get(name, (name, {}))
        # Compilation changes nothing about one fused kernel.
        for suffix in ("",) if name == "sdpa" else ("", " compiled"):
            layers[name + suffix] = lambda *sizes, a=attention, s=settings: build_attention(a, *sizes, **s)
    for name, (package, build) in PEERS.items():
        layers[name] = lambda *sizes, b=build, p=package: (importlib.metadata.version(p), b(*sizes))[1]
    return layers


def measure(
    shape: str, seq_len: int, device: torch.device, rounds: int, layers: dict[str, Build]
) -> list[dict[str, object]]:
    """One row for every layer at one shape and length."""
    batch, dim, heads = SHAPES[shape]
    torch.manual_seed(0)
    x = torch.randn(batch, seq_len, dim, device=device, requires_grad=True)
    timed: dict[str, Timed] = {}
    rows: list[dict[str, object]] = []
    for name, build in layers.items():
        row: dict[str, object] = {"shape": shape, "seq_len": seq_len, "layer": name, "status": "ok"}
        print(f"{shape} {seq_len} {name}", file=sys.stderr, flush=True)
        rows.append(row)
        room = min(psutil.virtual_memory().total / 2, free_memory())
        if _needs(name.removesuffix(" compiled"), batch, heads, seq_len) > room:
            row["status"] = "oom (estimated)"
            continue
        try:
            timed[name] = Timed(build(dim, heads, seq_len), x, name.endswith("compiled"))
        except importlib.metadata.PackageNotFoundError:
            row["status"] = "not installed"
    started = time.perf_counter()
    for number in range(rounds):
        # At 8,192 tokens a round takes minutes.
        if number >= 2 and time.perf_counter() - started > SECONDS_PER_LENGTH:
            break
        for t in timed.values():
            t.round()
    for row in rows:
        if t := timed.get(str(row["layer"])):
            row |= {
                "forward_ms": 1e3 * median(t.forward_times),
                "forward_backward_ms": 1e3 * median(t.total_times),
                "peak_memory_mb": t.memory_mb,
            }
    base = next((r.get("forward_backward_ms") for r in rows if r["layer"] == "softmax"), None)
    for row in rows:
        if base and "forward_backward_ms" in row:
            row["speed_vs_softmax"] = base / row["forward_backward_ms"]  # type: ignore[operator]
    timed.clear()
    gc.collect()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=split, default=",".join(SHAPES))
    parser.add_argument("--lengths", type=counts_of, default="1024,2048,4096,8192")
    parser.add_argument("--rounds", type=count_of, default=5)
    parser.add_argument("--layers", type=split, default="", help="only these, separated by commas")
    add_plugin(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, help="folder whose attention.csv gets the rows")
    parser.add_argument("--system-malloc", action="store_true", help="leave the C library's allocator as it is")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    arguments.device = find_device(arguments.device)
    layers = layers_of(plugged(arguments.plugin, "encoder"))
    check_known("shape", arguments.shapes, SHAPES)
    check_known("layer", arguments.layers, layers)
    if arguments.layers:
        layers = {name: layers[name] for name in arguments.layers}
    torch.set_num_threads(default_threads())
    kept = not arguments.system_malloc and keep_freed_memory()
    for shape in arguments.shapes:
        for seq_len in arguments.lengths:
            # The same columns whatever was measured: the file is added to length by length.
            frame = pd.DataFrame(
                measure(shape, seq_len, torch.device(arguments.device), arguments.rounds, layers), columns=COLUMNS
            )
            print(frame.round(2).to_string(), flush=True)
            torch.compiler.reset()
            frame["allocator"] = "kept" if kept else "system"
            if arguments.out:
                write(arguments.out, frame, arguments.device)


def write(folder: Path, frame: pd.DataFrame, device: str) -> None:
    """Add the rows, with machine and commit, to attention.csv under `folder`."""
    machine, code = describe_machine(device, "fp32"), describe_code()
    frame.insert(0, "device", machine.device)
    frame["threads"], frame["torch"] = machine.threads, machine.torch
    frame["commit"] = code.short
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "attention.csv"
    frame.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.2f")


if __name__ == "__main__":
    exit_with(main)
