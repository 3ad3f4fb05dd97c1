"""Decoding token by token: softmax with a cache of keys and values against RFA's state of constant size.

One self-attention layer with its projections generates `length` tokens, each from the one before, in alternation; what
the paper's figure draws. Speed is tokens a second over the whole generation. Memory is what the state and the last
step's other tensors take, parameters left out.

Compiled on a CPU, weights are packed once and multiplied by oneDNN, for softmax as for the others; eager products are
MKL's. On a GPU the constant states of ours are captured in a CUDA graph instead; a cache's shapes change with every
token. Other runs of this user on the device pause while a length is measured (lra_bench/sharing.py).

An attention of your own joins by --plugin FILE, if its causal form goes on from the state that it returned.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lra_bench.config import ConfigError, reason_of
from lra_bench.entry import DISTURBED_PERCENT
from lra_bench.exits import exit_with
from lra_bench.machine import card_busy_percent, default_threads, describe_code, describe_machine
from lra_bench.memory import MIB, PeakMemory, keep_freed_memory
from lra_bench.options import find_device, split
from lra_bench.plots import MARKERS, colour_of, new_figure, save, style
from lra_bench.probes import loses_state
from lra_bench.profiler import OtherProcesses
from lra_bench.sharing import AtWork

from .arguments import add_plugin, check_known, count_of, counts_of, plugged
from .decoding_steps import OURS, Step, Variant, build_layer, build_step, for_inference, variants_of

# A length is measured again until the asked rounds are done, but no longer than this.
MOST_SECONDS = 100.0
WARMUP_TOKENS = 32


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
    return memory.allocated_mb - before + sum(t.nbytes for t in tree_leaves(state) if isinstance(t, Tensor)) / MIB


def measure(arguments: argparse.Namespace, x: Tensor, length: int, work: AtWork) -> list[dict[str, object]]:
    """One row per variant at this length."""
    torch.compiler.reset()
    steps = {name: build_step(variant, arguments, length) for name, variant in arguments.variants.items()}
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
    names = list(dict.fromkeys(frame["model"]))
    models = list(dict.fromkeys(map(_model, names)))
    for axes, (column, unit, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for name in names:
            rows, model = frame[frame["model"] == name].sort_values("length"), _model(name)
            look: dict[str, Any] = {
                "color": colour_of(model, models),
                "marker": MARKERS[models.index(model) % len(MARKERS)],
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


def print_ratios(frame: pd.DataFrame) -> None:
    """What RFA gains at 2,048 tokens, where the paper has 12 times, last, and before it what plugins gain."""
    chosen = frame[frame["length"] == 2048].set_index("model")
    names = [name for name in chosen.index if _model(name) == "rfa" or _model(name) not in OURS]
    for name in sorted(names, key=lambda name: _model(name) == "rfa"):
        row, others = chosen.loc[name], [f"{chosen.loc[name, 'speed_vs_sdpa']:.3g} of sdpa"]
        if "softmax compiled" in chosen.index:
            best = chosen.loc["softmax compiled", "speed_vs_softmax"]
            others.insert(0, f"{row['speed_vs_softmax'] / best:.3g} of it compiled")
        if disturbed(chosen)[name]:
            others.append("measured beside other work")
        print(
            f"{name} at 2,048 tokens: {row['speed_vs_softmax']:.3g} times the speed of softmax with a cache"
            f" ({', '.join(others)}), {100 * row['memory_vs_softmax']:.1f} % of its memory"
        )


def _model(name: str) -> str:
    """Of a variant."""
    return name.removesuffix(" compiled")


def _chosen(models: list[str] | None, variants: dict[str, Variant]) -> dict[str, Variant]:
    """Of the variants those named, and the two that the others are compared with. Raises ConfigError."""
    names = list(variants) if models is None else ["softmax", "sdpa", *models]
    check_known("model", names, variants)
    return {name: variant for name, variant in variants.items() if name in names}


def _check(name: str, variant: Variant, arguments: argparse.Namespace) -> None:
    """Raise ConfigError for a variant that cannot decode."""
    try:
        layer = build_layer(variant, arguments, 16)
        lost = loses_state(layer, torch.randn(1, 16, arguments.dim, device=arguments.device))
    except Exception as error:
        raise ConfigError(f"{name} cannot decode: {reason_of(error)}") from None
    if lost:
        raise ConfigError(f"{name} cannot decode: its causal form gives other outputs token by token than in one pass")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _parse() -> argparse.Namespace:
    """The command line, with the chosen variants by name. Raises ConfigError and OSError for what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=counts_of, default="64,128,256,512,1024,2048,4096,8192")
    parser.add_argument(
        "--models", type=split, help=f"of {', '.join(variants_of())} and what a plugin brings, by default all"
    )
    add_plugin(parser)
    parser.add_argument("--batch", type=count_of, default=16)
    parser.add_argument("--dim", type=count_of, default=512)
    parser.add_argument("--heads", type=count_of, default=8)
    parser.add_argument(
        "--rounds", type=count_of, default=5, help="alternations of the variants; more where they are short"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="that a length is measured for at least")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for decode.csv and its picture")
    arguments = parser.parse_args()
    arguments.device = find_device(arguments.device)
    arguments.variants = _chosen(arguments.models, variants_of(plugged(arguments.plugin, "causal")))
    with torch.inference_mode():
        for name, variant in arguments.variants.items():
            if not variant.compiled:
                _check(name, variant, arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    return arguments


def main() -> None:
    arguments = _parse()
    warnings.filterwarnings("ignore")
    keep_freed_memory()
    torch.set_num_threads(default_threads())
    with for_inference():
        x = torch.randn(arguments.batch, 1, arguments.dim, device=arguments.device)
    machine, code = describe_machine(arguments.device, "fp32"), describe_code()
    rows: list[dict[str, object]] = []
    for length in arguments.lengths:
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
    print_ratios(frame)


if __name__ == "__main__":
    exit_with(main)
