"""AdamW and the two schedules of the protocols."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from .config import TrainConfig


def build_optimizer(model: nn.Module, train: TrainConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) over all parameters, weight decay on all of them as the protocols have it."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=train.lr,
        betas=train.betas,
        eps=train.eps,
        weight_decay=train.weight_decay,
        fused=not any(p.is_complex() for p in model.parameters()),  # torch's fused step takes none, as of S4
    )


def learning_rate_factor(step: int, train: TrainConfig) -> float:
    """Factor on `lr` at a step counted from 0.

    linear: up over `warmup` steps, then down to zero at `steps`. rsqrt: min(1, t / warmup) / sqrt(max(t, warmup))
    with t = step + 1, as the Long Range Arena's code has it; it is not normalised, so `lr` is not the peak.
    """
    t = step + 1
    warm = min(1.0, t / train.warmup) if train.warmup else 1.0
    if train.schedule == "rsqrt":
        return warm * max(t, train.warmup) ** -0.5
    if t <= train.warmup:
        return warm
    return max(0.0, (train.steps - step) / max(1, train.steps - train.warmup))


def build_schedule(optimizer: torch.optim.Optimizer, train: TrainConfig) -> LambdaLR:
    """The protocol's schedule, to be stepped after every optimiser step."""
    return LambdaLR(optimizer, lambda step: learning_rate_factor(step, train))
