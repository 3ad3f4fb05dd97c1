"""Decoding token by token: softmax with a cache of keys and values against RFA's state of constant size.

One self-attention layer with its projections generates `length` tokens, each from the one before, in alternation; what
the paper's figure draws. Speed is tokens a second over the whole generation, memory the size of the state at its end.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from torch import Tensor

from lra_bench.machine import describe_code, describe_machine
from lra_bench.memory import MIB, keep_freed_memory
from models import MultiHeadAttention, build_attention

VARIANTS = {"softmax": ("softmax", {}), "sdpa": ("sdpa", {}), "rfa": ("rfa", {}), "rfa-gate": ("rfa", {"gate": True})}


def generate(layer: MultiHeadAttention, x: Tensor, length: int) -> tuple[float, int]:
    """Seconds to decode `length` tokens, and bytes of the state at the end."""
    _wait(x.device)
    started = time.perf_counter()
    state = None
    with torch.inference_mode():
        for _ in range(length):
            x, state = layer.causal(x, state, keep_state=True)
    _wait(x.device)
    seconds = time.perf_counter() - started
    assert state is not None
    return seconds, sum(t.nbytes for t in state if isinstance(t, Tensor))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="64,128,256,512,1024,2048,4096,8192")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="folder for decode.csv")
    arguments = parser.parse_args()
    keep_freed_memory()
    device = torch.device(arguments.device)
    x = torch.randn(arguments.batch, 1, arguments.dim, device=device)
    rows = []
    for length in map(int, arguments.lengths.split(",")):
        layers: dict[str, MultiHeadAttention] = {}
        for name, (attention, settings) in VARIANTS.items():
            torch.manual_seed(0)
            layer = build_attention(attention, arguments.dim, arguments.heads, length, **settings)
            assert isinstance(layer, MultiHeadAttention)
            layers[name] = layer.to(device).eval()
            generate(layers[name], x, min(length, 8))
        times: dict[str, list[float]] = {name: [] for name in layers}
        sizes: dict[str, int] = {}
        for _ in range(arguments.rounds):
            for name, layer in layers.items():
                seconds, sizes[name] = generate(layer, x, length)
                times[name].append(seconds)
        for name in layers:
            seconds = median(times[name])
            rows.append(
                {
                    "length": length,
                    "model": name,
                    "tokens_per_sec": arguments.batch * length / seconds,
                    "state_mb": sizes[name] / MIB,
                    "speed_vs_softmax": median(times["softmax"]) / seconds,
                    "speed_vs_sdpa": median(times["sdpa"]) / seconds,
                    "memory_vs_softmax": sizes[name] / sizes["softmax"],
                }
            )
        frame = pd.DataFrame(rows)
        print(frame[frame["length"] == length].round(3).to_string(index=False, header=length == rows[0]["length"]))
    if arguments.out:
        machine, code = describe_machine(arguments.device, "fp32"), describe_code()
        frame = frame.assign(device=machine.device, threads=machine.threads, torch=machine.torch)
        frame["commit"] = code.short
        arguments.out.mkdir(parents=True, exist_ok=True)
        frame.to_csv(arguments.out / "decode.csv", index=False, float_format="%.3f")
    chosen = frame[(frame["model"] == "rfa") & (frame["length"] == 2048)]
    for row in chosen.itertuples():
        print(
            f"rfa at 2,048 tokens: {row.speed_vs_softmax:.1f} times the speed of softmax with a cache"
            f" ({row.speed_vs_sdpa:.1f} of sdpa), {100 * row.memory_vs_softmax:.1f} % of its state"
        )


if __name__ == "__main__":
    main()
