"""What a command would do, without doing it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from typing import Any

import torch
import yaml

from .build import count_parameters, estimate_step
from .cell import CellPlan
from .conduct import LooksAhead, check_conduct
from .config import RunConfig, reason_of
from .markup import align
from .profiler import matmul_rate

HEADER = {
    "cell": "cell",
    "settings": "settings",
    "state": "state",
    "steps": "steps",
    "step_memory_mb": "step memory MB",
    "train_minutes_at_least": "minutes, at least",
}


def outline(plans: Sequence[CellPlan], as_json: bool) -> str:
    """A line per cell with the estimated memory of a training step and a lower bound of the time for training.

    The bound is all matrix products of the steps at the rate that one large product reaches here; what is not a
    product, evaluation and start-up come on top. Both are None where the attention cannot be estimated.
    """
    config = plans[0].record.config
    rate = matmul_rate(torch.device(config.device), "bf16" if config.train.precision == "bf16" else "fp32")
    estimates = {key: _estimate(c) for key, c in {_kind(p): p.record.config for p in plans}.items()}
    lines = [_line(plan, estimates[_kind(plan)], rate) for plan in plans]
    if as_json:
        return json.dumps(lines, indent=1)
    shown = [key for key in HEADER if key != "settings" or any(line[key] for line in lines)]
    body = [["" if line[key] is None else _text(line[key]) for key in shown] for line in lines]
    left = [line for line in lines if line["state"] != "finished"]
    minutes = sum(line["train_minutes_at_least"] or 0.0 for line in left)
    return (
        f"{align([HEADER[key] for key in shown], body)}\n\n{len(left)} of {len(plans)} cells to run,"
        f" at least {minutes:,.1f} minutes of training: their matrix products at {rate / 1e9:,.0f} GFLOP/s, the rest"
        " not counted"
    )


def _kind(plan: CellPlan) -> tuple[str, str, str]:
    """What seeds have in common."""
    config = plan.record.config
    return config.task, config.model_name, config.settings_label


def _estimate(config: RunConfig) -> tuple[float, int] | None:
    try:
        estimate = estimate_step(config)
    except Exception:  # see estimate_step: some attentions cannot be estimated
        return None
    return estimate.memory_bytes / 2**20, estimate.flops


def _line(plan: CellPlan, estimate: tuple[float, int] | None, rate: float) -> dict[str, Any]:
    steps = plan.record.config.train.steps
    state = "to run"
    if not plan.force:
        state = "finished" if plan.finished() else "goes on" if plan.checkpoint.exists() else state
    return {
        "cell": plan.record.run_id,
        "settings": plan.record.config.settings_label,
        "state": state,
        "steps": steps,
        "step_memory_mb": estimate and round(estimate[0], 1),
        "train_minutes_at_least": estimate and round(steps * estimate[1] / rate / 60, 2),
    }


def _text(value: str | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if isinstance(value, float) else value


def describe_run(config: RunConfig) -> tuple[str, bool]:
    """The resolved configuration of one run, its parameters, how its attention behaves and what a step takes.

    And whether the run would get beyond its attention.
    """
    text, runs = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), True
    try:
        text += f"parameters: {count_parameters(config):,}\n"
        found = "; ".join(check_conduct(config, torch.device(config.device))) or "nothing wrong found"
    except LooksAhead as error:
        found, runs = str(error), False
    except Exception as error:  # of the attention, which may be anybody's code
        traceback.print_exception(error)
        return f"{text}attention: cannot be built ({reason_of(error)})\n", False
    text += f"attention, one layer tried: {found}\n"
    try:
        estimate = estimate_step(config)
    except Exception as error:  # see estimate_step
        return f"{text}memory: cannot be estimated ({reason_of(error)})\n", runs
    text += f"estimated memory of a training step: {estimate.memory_bytes / 2**20:,.0f} MB of tensors in float32\n"
    return f"{text}matrix products of a training step: {estimate.flops / 1e9:,.1f} GFLOP\n", runs
