"""The one training loop."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from tasks import Task

from .batching import DeviceSplit, TrainingOrder
from .checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state
from .config import RunConfig, reason_of
from .isolated import deferred_interrupt
from .objectives import Evaluation, objective_of
from .optim import build_schedule
from .sharing import NOT_SHARED, AtWork
from .stats import format_score, lower_is_better
from .step import TrainingStep


class Diverged(RuntimeError):
    """The training loss, or a score, became NaN or infinite."""


@dataclass
class Progress:
    """What a run has to show so far; all of it is saved with every checkpoint.

    loss_curve: (step, mean training loss since the entry before); validation_curve: (step, the task's metric);
    best_state: the weights with the best validation score; recent_states: those of the last validations, where
    they are to be averaged; seconds: spent training and validating; commits: of the code that did, in their order.
    """

    step: int = 0
    seconds: float = 0.0
    loss_curve: list[tuple[int, float]] = field(default_factory=list)
    validation_curve: list[tuple[int, float]] = field(default_factory=list)
    best_step: int = 0
    best_score: float | None = None
    best_state: dict[str, Tensor] = field(default_factory=dict)
    recent_states: list[dict[str, Tensor]] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)


class Trainer:
    """Trains `model` on `task` as `config` says, resuming from `checkpoint` where that file exists.

    compiled: as `compiling.compiles` answered; every training batch is then padded to the full length, the one shape
    that is compiled. work: gives way between two steps; commit: of this code; full_length: pad all batches to it, for
    an attention that would answer otherwise with less padding.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        task: Task,
        accelerator: Accelerator,
        checkpoint: Path,
        compiled: bool = False,
        work: AtWork = NOT_SHARED,
        commit: str = "",
        full_length: bool = False,
    ) -> None:
        self.config, self.accelerator, self.checkpoint, self.work = config, accelerator, checkpoint, work
        self.commit = commit
        self.objective = objective = objective_of(config, task.tokenizer)
        data, device = config.data, accelerator.device
        self.train_data = objective.on_device(task.train, device, trim=not (compiled or full_length))
        held_out = task.validation.sample(data.validation_items), task.test.sample(data.test_items)
        self.validation_data, self.test_data = (objective.on_device(s, device, trim=not full_length) for s in held_out)
        lengths = task.train.total_lengths() if config.train.group_by_length else None
        self.order = TrainingOrder(len(task.train), config.train.batch_size, config.seed, lengths)
        self.training_step = TrainingStep(objective, model, accelerator, compiled)
        self.schedule = build_schedule(self.training_step.optimizer, config.train)
        self.progress = Progress(commits=[commit])
        self._losses: list[Tensor] = []  # of the steps since the loss curve's last entry
        # Waiting for the device only now and then: a loss read at every step would stall a GPU.
        self._log_every = max(1, min(10, config.train.steps // 20))

    @property
    def model(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.training_step.model)

    @property
    def _rate(self) -> float:
        return float(self.training_step.optimizer.param_groups[0]["lr"])

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
            with deferred_interrupt() as check:
                try:
                    self._loop(bar, started, check)
                except KeyboardInterrupt:
                    progress.seconds = time.perf_counter() - started
                    self._save()
                    raise
        finally:
            bar.close()
        return progress

    def _loop(self, bar: tqdm[Any], started: float, check: Callable[[], None]) -> None:
        progress, train, losses = self.progress, self.config.train, self._losses
        self.model.train()
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        while progress.step < train.steps:
            losses.append(self.training_step(self.train_data.batch(self.order[progress.step][rank::ranks])))
            self.schedule.step()
            progress.step += 1
            bar.update()
            last = progress.step == train.steps
            evaluate = last or progress.step % train.eval_every == 0
            save = progress.step % train.checkpoint_every == 0 or last
            if evaluate or save or progress.step % self._log_every == 0:
                mean = self.accelerator.reduce(torch.stack(losses).mean(), "mean").item()
                if not math.isfinite(mean):
                    raise Diverged(f"the training loss became {mean} before step {progress.step}")
                progress.loss_curve.append((progress.step, mean))
                self.accelerator.log({"training loss": mean, "learning rate": self._rate}, step=progress.step)
                bar.set_postfix(loss=f"{mean:.3f}")
                losses.clear()
            if evaluate:
                self._validate(started)
            check()  # before saving: who is told to stop saves anyway, and would write this state twice
            if save:
                progress.seconds = time.perf_counter() - started
                self._save()
            self.work.give_way(check)

    def _validate(self, started: float) -> None:
        progress, metric = self.progress, self.objective.spec.metric
        score = self.evaluate(self.validation_data).value
        progress.validation_curve.append((progress.step, score))
        self.accelerator.log({f"validation {metric}": score}, step=progress.step)
        best, keep = progress.best_score, self.config.train.average
        better = best is None or (score < best if lower_is_better(metric) else score > best)
        if better or keep:
            state = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}
            if better:
                progress.best_score, progress.best_step, progress.best_state = score, progress.step, state
            if keep:
                progress.recent_states = [*progress.recent_states, state][-keep:]
        if self.accelerator.is_main_process:
            seconds = time.perf_counter() - started
            tqdm.write(
                f"{self.config.task} {self.config.model_name}: step {progress.step}/{self.config.train.steps}"
                f"  loss {progress.loss_curve[-1][1]:.3f}  validation {format_score(score, metric)}  {seconds:.0f} s",
                file=sys.stderr,
            )

    def evaluate(self, data: DeviceSplit, final: bool = False) -> Evaluation:
        """The task's metric on a whole split, the last incomplete batch included; final: see Objective.evaluate.

        Raises Diverged where the metric is no number.
        """
        model = self.model.eval()
        # Evaluation has many shapes; trimmed to their lengths, eager batches beat compiled full ones.
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"), self.accelerator.autocast():
            try:
                evaluation = self.objective.evaluate(model, data, self.accelerator, final)
            except FloatingPointError as error:
                raise Diverged(f"{error} after step {self.progress.step}") from None
        model.train()
        if not math.isfinite(evaluation.value):
            raise Diverged(f"{self.objective.spec.metric} became {evaluation.value} after step {self.progress.step}")
        return evaluation

    def test(self) -> tuple[Evaluation, float]:
        """Test of the best-validation weights, or of the average of the recent ones; and the last weights' score."""
        progress, last = self.progress, self.evaluate(self.test_data, final=True)
        if progress.recent_states:
            self.model.load_state_dict(average(progress.recent_states))
        elif progress.best_step != progress.step:
            self.model.load_state_dict(progress.best_state)
        else:
            return last, last.value
        return self.evaluate(self.test_data, final=True), last.value

    def _save(self) -> None:
        if self.accelerator.is_main_process:
            state = {
                "progress": vars(self.progress),
                "losses": [loss.item() for loss in self._losses],
                "model": self.model.state_dict(),
                "optimizer": self.training_step.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "random": random_state(self.accelerator.device),
            }
            save_checkpoint(self.checkpoint, state)

    def _resume(self) -> None:
        state = load_checkpoint(self.checkpoint)
        if state is None:
            return
        try:
            self.progress = Progress(**state["progress"])
            if self.commit not in self.progress.commits:
                self.progress.commits.append(self.commit)
            self._losses = [torch.tensor(loss, device=self.accelerator.device) for loss in state["losses"]]
            self.model.load_state_dict(state["model"])
            self.training_step.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            if self.accelerator.is_main_process:  # who wrote it; others' dropout is not to become the same
                set_random_state(state["random"], self.accelerator.device)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise RuntimeError(
                f"checkpoint {self.checkpoint} is not of this run ({reason_of(error)}); --force begins anew"
            ) from None


def average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights (Vaswani et al. 2017, section 6.1); of whole numbers the last's."""

    def mean(name: str, last: Tensor) -> Tensor:
        averaged = last.is_floating_point() or last.is_complex()
        return torch.stack([state[name] for state in states]).mean(dim=0) if averaged else last

    return {name: mean(name, last) for name, last in states[-1].items()}
