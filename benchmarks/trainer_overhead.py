"""What the trainer costs over a bare torch loop with the same model and the same batches.

    make bench-trainer ARGS="--steps 100 --rounds 3"

The two alternate step by step: inside `Trainer.fit` every update is preceded by a bare one on the same batch and a
twin of the model, whose time is taken out. What remains is the trainer whole, with assembling batches, logging, the
progress bar, a checkpoint and a validation on one example; the figure is its ratio to the bare updates.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F

from lra_bench.batching import Batch
from lra_bench.build import build_model
from lra_bench.config import RunConfig
from lra_bench.exits import exit_with
from lra_bench.optim import build_optimizer, build_schedule
from lra_bench.resolve import resolve
from lra_bench.step import TrainingStep
from lra_bench.trainer import Trainer
from tasks import Task, load_task

from .arguments import count_of


class Alternating:
    """Runs a plain update before each of the trainer's, and keeps the time that the plain ones took."""

    def __init__(self, step: TrainingStep, config: RunConfig) -> None:
        self.step, self.model, self.optimizer = step, step.model, step.optimizer
        self.clip_norm, self.device = config.train.clip_norm, torch.device(config.device)
        self.twin = build_model(config).to(self.device).train()
        self.twin_optimizer = build_optimizer(self.twin, config.train)
        self.twin_schedule = build_schedule(self.twin_optimizer, config.train)
        self.bare_seconds = 0.0

    def __call__(self, batch: Batch) -> Tensor:
        self._wait()
        started = time.perf_counter()
        self.twin_optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(self.twin(*batch.model_inputs()), batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.clip_norm)
        self.twin_optimizer.step()
        self.twin_schedule.step()
        self._wait()
        self.bare_seconds += time.perf_counter() - started
        result = self.step(batch)
        self._wait()
        return result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(config: RunConfig, task: Task) -> tuple[float, float]:
    """Seconds of the bare updates and of the trainer around its own, over one run."""
    torch.manual_seed(config.seed)
    with tempfile.TemporaryDirectory() as folder:
        accelerator = Accelerator(cpu=config.device == "cpu")
        trainer = Trainer(config, build_model(config), task, accelerator, Path(folder) / "checkpoint.pt")
        alternating = Alternating(trainer.training_step, config)
        trainer.training_step = alternating  # type: ignore[assignment]
        started = time.perf_counter()
        trainer.fit()
        total = time.perf_counter() - started
    return alternating.bare_seconds, total - alternating.bare_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="rfa")
    parser.add_argument("--steps", type=count_of, default=100)
    parser.add_argument("--rounds", type=count_of, default=3)
    parser.add_argument("--data", default="embedded")
    arguments = parser.parse_args()
    settings = {"train.steps": arguments.steps, "train.precision": "fp32", "data.validation_items": 1}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = resolve("text", arguments.model, "quick", device=device, overrides=settings)
    task = load_task("text", arguments.data, config.data.max_len)
    measure(config.model_copy(update={"train": config.train.model_copy(update={"steps": 5})}), task)  # warm-up
    rounds = [measure(config, task) for _ in range(arguments.rounds)]
    bare, trainer = (1e3 * median(times) / arguments.steps for times in zip(*rounds, strict=True))
    print(f"bare {bare:.1f} ms a step, trainer {trainer:.1f} ms a step")
    print(f"trainer / bare: {median(t / b for b, t in rounds):.3f} (median of {arguments.rounds} rounds)")


if __name__ == "__main__":
    exit_with(main)
