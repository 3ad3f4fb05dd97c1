"""What assembling a batch costs beside a training step.

    make bench-batching

Batches of the `compact` protocol's size at length 4,000 are gathered from the text task's packed tokens and trained on
with `rfa`, in turn; the figure is the share of the step's time that gathering takes.
"""

import argparse
import time
from statistics import median

import torch

from lra_bench.batching import TrainingOrder
from lra_bench.exits import exit_with
from lra_bench.objectives import objective_of
from lra_bench.resolve import resolve
from lra_bench.step import TrainingStep, build_accelerator
from tasks import load_task

from .arguments import count_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=count_of, default=10)
    parser.add_argument("--data", default="embedded")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = resolve("text", "rfa", "compact", device=device, overrides={"train.precision": "fp32"})
    task = load_task("text", arguments.data, config.data.max_len)
    accelerator = build_accelerator(config)
    objective = objective_of(config)
    data = objective.on_device(task.train, accelerator.device)
    order = TrainingOrder(len(task.train), config.train.batch_size, config.seed)
    step = TrainingStep(objective, objective.build_model().to(accelerator.device).train(), accelerator)
    gathering, training = [], []
    for number in range(arguments.steps + 2):
        started = time.perf_counter()
        batch = data.batch(order[number])
        _wait(device)
        gathered = time.perf_counter()
        step(batch)
        _wait(device)
        if number >= 2:  # the first two warm up
            gathering.append(gathered - started)
            training.append(time.perf_counter() - gathered)
    print(f"gathering {1e3 * median(gathering):.2f} ms, training step {1e3 * median(training):,.0f} ms")
    shape = f"{config.train.batch_size} × {config.data.max_len:,}"
    print(f"share: {100 * median(gathering) / median(training):.2f} % at {shape} tokens on {device}")


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    exit_with(main)
