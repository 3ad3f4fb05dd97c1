"""What each choice that makes training fast on a GPU gives: all of them, and all but one, in turn.

    .venv/bin/python -m benchmarks.gpu_choices

One model of `compact` text trains on sequences of full length as the trainer does, with CUDA graphs, bf16, the fused
optimiser, the data set on the card and losses read every ten steps. Other runs of this user on the card pause while
it is timed (lra_bench/sharing.py).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from accelerate.state import AcceleratorState

from lra_bench.batching import DeviceSplit, TrainingOrder
from lra_bench.compiling import compiles
from lra_bench.config import CUDA_GRAPHS
from lra_bench.machine import describe_code, describe_machine
from lra_bench.objectives import objective_of
from lra_bench.resolve import resolve
from lra_bench.sharing import AtWork
from lra_bench.step import TrainingStep, build_accelerator, set_matmul_precision
from tasks import PackedSequences, Split

ALL = "all"
# How the step is built where a choice is taken back that it is built with.
BUILT: dict[str, dict[str, object]] = {
    ALL: {"train.compile": CUDA_GRAPHS},
    "compiled, without CUDA graphs": {"train.compile": True},
    "eager": {"train.compile": False},
    "fp32": {"train.compile": CUDA_GRAPHS, "train.precision": "fp32"},
}
NUM_SEQUENCES = 512


def build_step(arguments: argparse.Namespace, overrides: dict[str, object]) -> TrainingStep:
    """The training step, compiled and warmed up."""
    AcceleratorState._reset_state(reset_partial_state=True)  # accelerate keeps a process's first precision
    overrides = {"data.max_len": arguments.length, **overrides}
    config = resolve("text", arguments.model, "compact", device=arguments.device, overrides=overrides)
    accelerator = build_accelerator(config)
    compiled = compiles(config, accelerator)
    torch.manual_seed(0)
    objective = objective_of(config)
    step = TrainingStep(objective, objective.build_model().to(accelerator.device).train(), accelerator, compiled)
    with accelerator.device:
        batch = objective.random_batch()
    for _ in range(5):
        step(batch)
    return step


def train(step: TrainingStep, data: DeviceSplit, order: TrainingOrder, steps: int, read_every: int = 10) -> float:
    """Milliseconds of a step, among so many."""
    set_matmul_precision(step.objective.config)
    _wait()
    started = time.perf_counter()
    losses = []
    for number in range(steps):
        losses.append(step(data.batch(order[number])))
        if (number + 1) % read_every == 0:
            torch.stack(losses).mean().item()
            losses.clear()
    _wait()
    return 1e3 * (time.perf_counter() - started) / steps


def with_optimizer(step: TrainingStep, options: dict[str, object], measure: Callable[[], float]) -> float:
    """`measure` with AdamW of other options in the step."""
    fused = step.optimizer
    step.optimizer = torch.optim.AdamW(step.parameters, lr=fused.param_groups[0]["lr"], **options)  # type: ignore[arg-type]
    try:
        return measure()
    finally:
        step.optimizer = fused


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="rfa")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = torch.device(arguments.device)
    tokens = np.random.default_rng(0).integers(1, 257, NUM_SEQUENCES * arguments.length, dtype=np.int16)
    packed = PackedSequences.from_offsets(tokens, np.arange(NUM_SEQUENCES + 1) * arguments.length)
    split = Split((packed,), np.arange(NUM_SEQUENCES) % 2)
    with AtWork("cuda" if device.type == "cuda" else "cpu") as work:
        steps = {name: build_step(arguments, overrides) for name, overrides in BUILT.items()}
        best, config = steps[ALL], steps[ALL].objective.config
        on_card, on_host = (DeviceSplit(split, arguments.length, device, r, trim=False) for r in (True, False))
        order = TrainingOrder(NUM_SEQUENCES, config.train.batch_size, seed=0)
        run = partial(train, order=order, steps=arguments.steps)
        measured: dict[str, Callable[[], float]] = {
            name: partial(run, step, on_card) for name, step in steps.items()
        } | {
            "optimiser tensor by tensor": lambda: with_optimizer(best, {"foreach": False}, lambda: run(best, on_card)),
            "optimiser not fused": lambda: with_optimizer(best, {"foreach": True}, lambda: run(best, on_card)),
            "data in host memory": lambda: run(best, on_host),
            "loss read at every step": lambda: run(best, on_card, read_every=1),
        }
        times: dict[str, list[float]] = {name: [] for name in measured}
        with work.alone():
            for _ in range(arguments.rounds + 1):  # the first warms up
                for name, measure in measured.items():
                    times[name].append(measure())
    all_of_them = median(times[ALL][1:])
    for name, values in times.items():
        ms = median(values[1:])
        print(f"{name:30s} {ms:8.2f} ms a step, {ms / all_of_them:5.2f} times that of all")
    shape = f"{config.train.batch_size} x {arguments.length:,} tokens, {arguments.rounds} x {arguments.steps} steps"
    machine = describe_machine(arguments.device, "bf16")
    print(f"{arguments.model}, {shape} on {machine.device}, torch {machine.torch}; commit {describe_code().short}")


if __name__ == "__main__":
    main()
