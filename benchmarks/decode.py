"""Decoding token by token: softmax with a cache of keys and values against RFA's state of constant size.

One self-attention layer with its projections generates `length` tokens, each from the one before, in alternation; what
the paper's figure draws. Speed is tokens a second over the whole generation. Memory is what the state and the last
step's other tensors take, parameters left out.

Compiled on a CPU, weights are packed once and multiplied by oneDNN, for softmax as for the others; eager products are
MKL's. On a GPU constant states are captured in a CUDA graph instead; a cache's shapes change with every token. Other
runs of this user on the device pause while a length is measured (lra_bench/sharing.py).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.utils._pytree import tree_map, tree_map_only

from lra_bench.entry import DISTURBED_PERCENT
from lra_bench.machine import card_busy_percent, describe_code, describe_machine
from lra_bench.memory import MIB, PeakMemory, keep_freed_memory
from lra_bench.plots import MARKERS, colour_of, new_figure, save, style
from lra_bench.profiler import OtherProcesses
from lra_bench.sharing import AtWork
from models import MultiHeadAttention, build_attention

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]

# Attention, its settings, and whether its step is compiled. sdpa is one kernel as it is.
VARIANTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "softmax": ("softmax", {}, False),
    "sdpa": ("sdpa", {}, False),
    "linear": ("linear", {}, False),
    "rfa": ("rfa", {}, False),
    "rfa-gate": ("rfa", {"gate": True}, False),
    "softmax compiled": ("softmax", {}, True),
    "linear compiled": ("linear", {}, True),
    "rfa compiled": ("rfa", {}, True),
    "rfa-gate compiled": ("rfa", {"gate": True}, True),
}
# A length is measured again until the asked rounds are done, but no longer than this.
MOST_SECONDS = 100.0
WARMUP_TOKENS = 32


class CapturedStep:
    """A step as a CUDA graph: launching its small kernels one by one takes longer than running them.

    For states of constant size, which the step updates in place.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            return self.step(x, None)
        if self.graph is None:
            self.x, self.state = x.clone(), tree_map_only(Tensor, torch.clone, state)
            self.step(
                self.x, tree_map_only(Tensor, torch.clone, state)
            )  # what is set up at a first call is no part of it
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y, self.after = self.step(self.x, self.state)
                self.x.copy_(self.y)  # for the next token: between two replays nothing is launched
        elif state is not self.after:
            tree_map(_copy, self.state, state)
        if x is not self.y:
            self.x.copy_(x)
        self.graph.replay()
        return self.y, self.after


@contextmanager
def for_inference() -> Iterator[None]:
    """No gradients; and what torch.compile compiles packs its weights, as constants, and multiplies by oneDNN."""
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    # What makes Inductor choose oneDNN, which computes in float32 where a processor has no TF32.
    matmul.fp32_precision = "tf32"
    try:
        # A gated state is made of more tensors than Inductor by itself reads in one pass.
        with torch.inference_mode(), inductor_config.patch(freezing=True, realize_reads_threshold=8):
            yield
    finally:
        matmul.fp32_precision = before


def build_step(name: str, arguments: argparse.Namespace, length: int) -> Step:
    """The layer's step from (token, state) to (token, state)."""
    attention, settings, compiled = VARIANTS[name]
    torch.manual_seed(0)
    # One token more for `held_mb`, and one because a compiled slice of a whole cache is another program.
    layer = build_attention(attention, arguments.dim, arguments.heads, length + 2, **settings)
    assert isinstance(layer, MultiHeadAttention)
    layer = layer.to(arguments.device).eval()

    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return layer.causal(x, state, keep_state=True)

    if not compiled:
        return step
    if arguments.device.startswith("cuda") and not layer.state_grows:
        return CapturedStep(step)
    later = torch.compile(step)
    return lambda x, state: step(x, None) if state is None else later(x, state)


def generate(step: Step, x: Tensor, length: int) -> tuple[float, Tensor, Any]:
    """Seconds to decode `length` tokens, the last one and the state."""
    _wait(x.device)
    started = time.perf_counter()
    state = None
    for _ in range(length):
        x, state = step(x, state)
    _wait(x.device)
    return time.perf_counter() - started, x, state


def held_mb(step: Step, x: Tensor, state: Any) -> float:
    """MiB of the state and of what one more step makes besides."""
    before = torch.cuda.memory_allocated(x.device) / MIB if x.device.type == "cuda" else 0.0
    with PeakMemory(x.device) as memory:
        step(x, state)
    return memory.allocated_mb - before + sum(t.nbytes for t in state if isinstance(t, Tensor)) / MIB


def measure(arguments: argparse.Namespace, x: Tensor, length: int, work: AtWork) -> list[dict[str, object]]:
    """One row per variant at this length."""
    torch.compiler.reset()
    steps = {name: build_step(name, arguments, length) for name in arguments.models}
    for step in steps.values():
        generate(step, x, min(length, WARMUP_TOKENS))
    memory: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in steps}
    with work.alone():
        others, started = OtherProcesses(), time.perf_counter()
        while (spent := time.perf_counter() - started) < arguments.seconds or (
            len(times["softmax"]) < arguments.rounds and spent < MOST_SECONDS
        ):
            for name, step in steps.items():
                seconds, last, state = generate(step, x, length)
                times[name].append(seconds)
                if name not in memory:
                    memory[name] = held_mb(step, last, state)
                del last, state
        busy = card_busy_percent(x.device) if x.is_cuda else others.percent(spent)
    medians = {name: median(values) for name, values in times.items()}
    return [
        {
            "length": length,
            "model": name,
            "tokens_per_sec": arguments.batch * length / medians[name],
            "memory_mb": memory[name],
            "speed_vs_softmax": medians["softmax"] / medians[name],
            "speed_vs_sdpa": medians["sdpa"] / medians[name],
            "memory_vs_softmax": memory[name] / memory["softmax"],
            "rounds": len(times[name]),
            "other_gpu_percent" if x.is_cuda else "other_cpu_percent": busy,
        }
        for name in steps
    ]


def draw(folder: Path, frame: pd.DataFrame, title: str) -> None:
    """decode.png and decode.svg: speed and memory relative to softmax against length."""
    doubtful = disturbed(frame)
    note = f" (hollow: others took more than {DISTURBED_PERCENT:.0f} % of the processors or the card)"
    figure = new_figure(title + note * bool(doubtful.any()), width=11.0)
    panels = (
        ("speed_vs_softmax", 1, "speed relative to softmax with a cache"),
        ("memory_vs_softmax", 100, "memory in percent of that of softmax with a cache"),
    )
    names = [name for name in VARIANTS if name in set(frame["model"])]
    for axes, (column, unit, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for name in names:
            rows, model = frame[frame["model"] == name].sort_values("length"), name.removesuffix(" compiled")
            look: dict[str, Any] = {
                "color": colour_of(model, names),
                "marker": MARKERS[names.index(model) % len(MARKERS)],
                "markersize": 5,
            }
            style_of_line = "-" if name == model else "--"
            axes.plot(rows["length"], unit * rows[column], **look, linestyle=style_of_line, label=name)
            if column == "speed_vs_softmax":
                hollow = rows[doubtful[rows.index]]
                axes.plot(hollow["length"], hollow[column], **look, linestyle="none", markerfacecolor="white")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        lengths = sorted(set(frame["length"]))
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], fontsize=8)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:.3g}")
        axes.set_xlabel("tokens generated")
        axes.set_ylabel(label)
        style(axes)
    axes.legend(frameon=False, fontsize=8, handlelength=4)  # so that dashes are told from lines
    save(figure, folder / "decode")


def disturbed(frame: pd.DataFrame) -> pd.Series:
    """For each row whether its length was measured while others took much of the processors or the card."""
    return frame.filter(regex="^other_").astype(float).gt(DISTURBED_PERCENT).any(axis=1)


def _models(text: str) -> list[str]:
    """Names of VARIANTS separated by commas, with the two that the others are compared with."""
    names = ["softmax", "sdpa", *(part.strip() for part in text.split(","))]
    if unknown := [name for name in names if name not in VARIANTS]:
        raise argparse.ArgumentTypeError(f"unknown {unknown[0]!r}; choose from {', '.join(VARIANTS)}")
    return [name for name in VARIANTS if name in names]


def _copy(own: Any, other: Any) -> Any:
    return own.copy_(other) if isinstance(own, Tensor) else own


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="64,128,256,512,1024,2048,4096,8192")
    parser.add_argument("--models", type=_models, default=list(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="alternations of the variants; more where they are short")
    parser.add_argument("--seconds", type=float, default=10.0, help="that a length is measured for at least")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for decode.csv and its picture")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    with for_inference():
        x = torch.randn(arguments.batch, 1, arguments.dim, device=arguments.device)
    machine, code = describe_machine(arguments.device, "fp32"), describe_code()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for length in map(int, arguments.lengths.split(",")):
        with AtWork("cuda" if x.is_cuda else "cpu") as work, for_inference():
            rows += measure(arguments, x, length, work)
        frame = pd.DataFrame(rows)
        now = frame[frame["length"] == length].round(3)
        print(now.to_string(index=False, header=len(now) == len(rows)))
        frame = frame.assign(device=machine.device, threads=machine.threads, torch=machine.torch, commit=code.short)
        frame.to_csv(arguments.out / "decode.csv", index=False, float_format="%.6g")
    shape = f"batch {arguments.batch}, {arguments.heads} heads of {arguments.dim // arguments.heads}"
    draw(arguments.out, frame, f"decoding token by token, one layer, {shape}, {machine.device}")
    print(f"written: {arguments.out / 'decode.csv'}, {arguments.out / 'decode.png'}, {arguments.out / 'decode.svg'}")
    chosen = frame[frame["length"] == 2048].set_index("model")
    for name in ("rfa", "rfa compiled"):
        if name in chosen.index:
            row, others = chosen.loc[name], [f"{chosen.loc[name, 'speed_vs_sdpa']:.1f} of sdpa"]
            if "softmax compiled" in chosen.index:
                best = chosen.loc["softmax compiled", "speed_vs_softmax"]
                others.insert(0, f"{row['speed_vs_softmax'] / best:.1f} of it compiled")
            if disturbed(chosen)[name]:
                others.append("measured beside other work")
            print(
                f"{name} at 2,048 tokens: {row['speed_vs_softmax']:.1f} times the speed of softmax with a cache"
                f" ({', '.join(others)}), {100 * row['memory_vs_softmax']:.1f} % of its memory"
            )


if __name__ == "__main__":
    main()
