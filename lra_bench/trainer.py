"""The one training loop."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models import Classifier
from tasks import Task

from .batching import Batch, DeviceSplit, TrainingOrder
from .checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state
from .compiling import compile_blocks
from .config import RunConfig
from .optim import build_optimizer, build_schedule


class Diverged(RuntimeError):
    """The training loss became NaN or infinite."""


class TrainingStep:
    """zero_grad, forward, loss, backward, clip, optimiser step; what the profiler times is this very object."""

    def __init__(self, model: Classifier, config: RunConfig, accelerator: Accelerator, compiled: bool = False) -> None:
        self.accelerator, self.clip_norm = accelerator, config.train.clip_norm
        if compiled:
            compile_blocks(model)
        self.model, self.optimizer = accelerator.prepare(model, build_optimizer(model, config.train))

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """One update. Returns the loss and the number of correct predictions, detached, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(*batch.model_inputs())
        loss = F.cross_entropy(logits, batch.labels)
        self.accelerator.backward(loss)
        if self.clip_norm:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.optimizer.step()
        return loss.detach(), (logits.argmax(dim=-1) == batch.labels).sum()


@dataclass
class Progress:
    """What a run has to show so far; all of it is saved with every checkpoint.

    loss_curve: (step, mean training loss since the entry before); validation_curve: (step, accuracy in percent);
    best_state: the weights with the best validation accuracy; seconds: spent training and validating.
    """

    step: int = 0
    seconds: float = 0.0
    loss_curve: list[tuple[int, float]] = field(default_factory=list)
    validation_curve: list[tuple[int, float]] = field(default_factory=list)
    best_step: int = 0
    best_accuracy: float = -1.0
    best_state: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """Trains `model` on `task` as `config` says, resuming from `checkpoint` where that file exists.

    compiled: as `compiling.compiles` answered; every training batch is then padded to the full length, the one shape
    that is compiled.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Classifier,
        task: Task,
        accelerator: Accelerator,
        checkpoint: Path,
        compiled: bool = False,
    ) -> None:
        self.config, self.accelerator, self.checkpoint = config, accelerator, checkpoint
        data, device = config.data, accelerator.device
        self.train_data = DeviceSplit(task.train, data.max_len, device, trim=not compiled)
        self.validation_data = DeviceSplit(task.validation.sample(data.validation_items), data.max_len, device)
        self.test_data = DeviceSplit(task.test.sample(data.test_items), data.max_len, device)
        lengths = task.train.total_lengths() if config.train.group_by_length else None
        self.order = TrainingOrder(len(task.train), config.train.batch_size, config.seed, lengths)
        self.training_step = TrainingStep(model, config, accelerator, compiled)
        self.schedule = build_schedule(self.training_step.optimizer, config.train)
        self.progress = Progress()
        # Waiting for the device only now and then: a loss read at every step would stall a GPU.
        self._log_every = max(1, min(10, config.train.steps // 20))

    @property
    def model(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.training_step.model)

    @property
    def epochs(self) -> float:
        return self.progress.step / self.order.steps_per_epoch

    def fit(self) -> Progress:
        """Train to the last step. Raises Diverged; on KeyboardInterrupt a checkpoint is left and the error goes on."""
        self._resume()
        progress, train = self.progress, self.config.train
        bar = tqdm(
            total=train.steps,
            initial=progress.step,
            desc=f"{self.config.task} {self.config.model_name} seed {self.config.seed}",
            unit="step",
            disable=None if self.accelerator.is_main_process else True,
        )
        started = time.perf_counter() - progress.seconds
        try:
            self._loop(bar, started)
        except KeyboardInterrupt:
            progress.seconds = time.perf_counter() - started
            self._save()
            raise
        finally:
            bar.close()
        return progress

    def _loop(self, bar: tqdm[Any], started: float) -> None:
        progress, train = self.progress, self.config.train
        losses: list[Tensor] = []
        correct: list[Tensor] = []
        self.model.train()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        while progress.step < train.steps:
            loss, hits = self.training_step(self.train_data.batch(self.order[progress.step][rank::ranks]))
            self.schedule.step()
            losses.append(loss)
            correct.append(hits)
            progress.step += 1
            bar.update()
            last = progress.step == train.steps
            evaluate = last or progress.step % train.eval_every == 0
            save = progress.step % train.checkpoint_every == 0 or last
            if evaluate or save or progress.step % self._log_every == 0:
                mean = torch.stack(losses).mean().item()
                accuracy = 100 * torch.stack(correct).sum().item() / (len(correct) * self.order.batch_size // ranks)
                if not math.isfinite(mean):
                    raise Diverged(f"the training loss became {mean} before step {progress.step}")
                progress.loss_curve.append((progress.step, mean))
                bar.set_postfix(loss=f"{mean:.3f}", accuracy=f"{accuracy:.1f}%")
                losses.clear()
                correct.clear()
            if evaluate:
                self._validate(started)
            if save:
                progress.seconds = time.perf_counter() - started
                self._save()

    def _validate(self, started: float) -> None:
        progress = self.progress
        correct, count = self.evaluate(self.validation_data)
        accuracy = 100 * correct / count
        progress.validation_curve.append((progress.step, accuracy))
        if accuracy > progress.best_accuracy:
            progress.best_accuracy, progress.best_step = accuracy, progress.step
            progress.best_state = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}
        if self.accelerator.is_main_process:
            seconds = time.perf_counter() - started
            tqdm.write(
                f"{self.config.task} {self.config.model_name}: step {progress.step}/{self.config.train.steps}"
                f"  loss {progress.loss_curve[-1][1]:.3f}  validation {accuracy:.1f} %  {seconds:.0f} s",
                file=sys.stderr,
            )

    def evaluate(self, data: DeviceSplit) -> tuple[int, int]:
        """Correct predictions and examples of a whole split, the last incomplete batch included."""
        model = self.training_step.model
        model.eval()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        correct = torch.zeros((), dtype=torch.int64, device=self.accelerator.device)
        # Evaluation has many shapes; trimmed to their lengths, eager batches beat compiled full ones.
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            for indices in data.by_length(2 * self.config.train.batch_size)[rank::ranks]:
                batch = data.batch(indices)
                correct += (model(*batch.model_inputs()).argmax(dim=-1) == batch.labels).sum()
        model.train()
        return int(self.accelerator.reduce(correct, "sum").item()), len(data)

    def test(self) -> tuple[int, int, float]:
        """Correct predictions of the best-validation weights on test, examples, and the last weights' accuracy."""
        correct, count = self.evaluate(self.test_data)
        last_accuracy = 100 * correct / count
        if self.progress.best_step != self.progress.step:
            self.model.load_state_dict(self.progress.best_state)
            correct, count = self.evaluate(self.test_data)
        return correct, count, last_accuracy

    def _save(self) -> None:
        if self.accelerator.is_main_process:
            state = {
                "progress": vars(self.progress),
                "model": self.model.state_dict(),
                "optimizer": self.training_step.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "random": random_state(),
            }
            save_checkpoint(self.checkpoint, state)

    def _resume(self) -> None:
        state = load_checkpoint(self.checkpoint)
        if state is None:
            if self.checkpoint.exists():
                print(f"warning: checkpoint {self.checkpoint} is damaged; starting over", file=sys.stderr)
            return
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.training_step.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        set_random_state(state["random"])
