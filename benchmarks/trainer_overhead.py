"""What the trainer costs over a bare torch loop with the same model and the same batches, made beforehand.

    make bench-trainer ARGS="--steps 40 --rounds 12"

Both loops run in turn in one process; the figure is the ratio of their median times. The trainer's side is
`Trainer.fit` whole: assembling batches, logging, progress bar, a checkpoint and a validation on one example.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from accelerate import Accelerator
from torch.nn import functional as F

from lra_bench.batching import Batch, DeviceSplit, TrainingOrder
from lra_bench.build import build_model
from lra_bench.config import RunConfig, resolve
from lra_bench.optim import build_optimizer, build_schedule
from lra_bench.trainer import Trainer
from tasks import Task, load_task


def bare_seconds(config: RunConfig, batches: list[Batch]) -> float:
    """Seconds for one plain update per batch."""
    torch.manual_seed(config.seed)
    model = build_model(config).to(config.device).train()
    optimizer = build_optimizer(model, config.train)
    schedule = build_schedule(optimizer, config.train)
    started = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(*batch.model_inputs()), batch.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
        optimizer.step()
        schedule.step()
    loss.item()
    return time.perf_counter() - started


def trainer_seconds(config: RunConfig, task: Task, accelerator: Accelerator) -> float:
    """Seconds of `Trainer.fit` over as many steps."""
    torch.manual_seed(config.seed)
    model = build_model(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(config, model, task, accelerator, Path(folder) / "checkpoint.pt")
        started = time.perf_counter()
        trainer.fit()
        seconds = time.perf_counter() - started
    accelerator.free_memory()  # or every round's model would live on
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="rfa")
    parser.add_argument("--steps", type=int, default=40, help="steps of each loop in a round")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data", default="embedded")
    arguments = parser.parse_args()
    settings = {"train.steps": arguments.steps, "train.precision": "fp32", "data.validation_items": 1}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = resolve("text", arguments.model, "quick", device=device, overrides=settings)
    task = load_task("text", arguments.data, config.data.max_len)
    accelerator = Accelerator(cpu=device == "cpu")
    data = DeviceSplit(task.train, config.data.max_len, accelerator.device)
    order = TrainingOrder(len(task.train), config.train.batch_size, config.seed)
    batches = [data.batch(order[step]) for step in range(arguments.steps)]

    bare, trained = [], []
    for number in range(arguments.rounds + 1):
        # Each goes first in every other round; round 0 warms up and is not counted.
        first = trainer_seconds(config, task, accelerator) if number % 2 else 0.0
        plain = bare_seconds(config, batches)
        trainer = first or trainer_seconds(config, task, accelerator)
        if number:
            bare.append(plain / arguments.steps)
            trained.append(trainer / arguments.steps)
    ratios = [t / b for t, b in zip(trained, bare, strict=True)]
    print(f"bare loop {1e3 * median(bare):.1f} ms a step, trainer {1e3 * median(trained):.1f} ms a step")
    print(f"trainer / bare: {median(ratios):.3f} (median of {arguments.rounds} alternating rounds)")


if __name__ == "__main__":
    main()
