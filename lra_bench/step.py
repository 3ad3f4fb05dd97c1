"""The training step, eager or compiled: what the trainer runs and the profiler times."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.encoder import Block

from .batching import Batch
from .config import RunConfig
from .objectives import Objective
from .optim import build_optimizer


def build_accelerator(config: RunConfig, **options: Any) -> Accelerator:
    """The device, precision and processes of a run; options: further ones of Accelerator."""
    set_matmul_precision(config)
    bf16 = config.train.precision == "bf16"
    return Accelerator(cpu=config.device == "cpu", mixed_precision="bf16" if bf16 else "no", **options)


def set_matmul_precision(config: RunConfig) -> None:
    """In bf16 autocast some products stay in float32, such as the sums over all keys.

    On a card they are then made of factors rounded to TF32, 10 bits of mantissa where bf16 keeps 7, by units that are
    seven times as fast; the sums themselves remain float32. In fp32 nothing is rounded.
    """
    if config.device == "cuda":
        # Not by fp32_precision of cuda.matmul: whoever then asks torch for allow_tf32 gets an error.
        torch.set_float32_matmul_precision("high" if config.train.precision == "bf16" else "highest")


def compile_blocks(model: nn.Module, mode: str | None = None) -> None:
    """Compile the transformer's blocks for fixed shapes, in place; parameters keep their names.

    Block by block, so that one compilation serves every layer; evaluation stays eager. mode: torch.compile's.
    """
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=False, mode=mode)


def add_gradients(objective: Objective, model: nn.Module, batch: Batch) -> Tensor:
    """Add the gradients of the batch's mean loss to those that the parameters have; returns that loss, detached.

    `train.examples_at_once` at a time, each part weighed by its share of the losses that the mean is of. Every part
    draws dropout and random features of its own.
    """
    parts = batch.split(objective.config.train.examples_at_once)
    losses = []
    for part in parts:
        # Processes share their gradients once, after the last part.
        last = part is parts[-1]
        with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext():
            loss = objective.loss(objective.outputs(model, part), part)
            if len(parts) > 1:
                loss = loss * (objective.loss_terms(part) / objective.loss_terms(batch))
            loss.backward()
        losses.append(loss.detach())
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


class TrainingStep:
    """zero_grad, forward, loss, backward, clip, optimiser step; what the profiler times is this very object."""

    def __init__(
        self, objective: Objective, model: nn.Module, accelerator: Accelerator, compiled: bool = False
    ) -> None:
        train = objective.config.train
        self.objective, self.clip_norm = objective, train.clip_norm
        self.mode = train.compile if compiled and isinstance(train.compile, str) else None
        if compiled:
            compile_blocks(model, self.mode)
        # Autocast and gradients shared among processes are the prepared model's own. In bf16 no loss is scaled, so that
        # the rest needs no more than torch, whose calls take the host less time than accelerate's around them.
        self.model = accelerator.prepare(model)
        self.optimizer = build_optimizer(self.model, train)
        self.parameters = list(self.model.parameters())  # walking through the modules takes the host a while

    def __call__(self, batch: Batch) -> Tensor:
        """One update. Returns the loss, detached, on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.mode:  # what the last step's graphs returned may be written over
            torch.compiler.cudagraph_mark_step_begin()
        loss = add_gradients(self.objective, self.model, batch)
        if self.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimizer.step()
        return loss
