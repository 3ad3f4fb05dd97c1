"""Step time and peak memory, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator

from .build import build_model, random_batch
from .config import RunConfig
from .records import StepProfile
from .trainer import TrainingStep

WARMUP_STEPS = {"cpu": 3, "cuda": 10}
TIMED_STEPS = {"cpu": 10, "cuda": 30}
MIB = 2.0**20


class PeakMemory:
    """Peak memory of the device from construction on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            self._baseline = _reset_peak_resident()

    def mb(self) -> float | None:
        """Peak in MiB: allocated on CUDA, growth of resident memory on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        peak = _resident("VmHWM")
        return None if peak is None or self._baseline is None else (peak - self._baseline) / MIB

    def reserved_mb(self) -> float | None:
        """Peak that CUDA's caching allocator held, in MiB; None on a CPU."""
        return torch.cuda.max_memory_reserved(self.device) / MIB if self.device.type == "cuda" else None


def _resident(field: Literal["VmHWM", "VmRSS"]) -> float | None:
    """A line of /proc/self/status in bytes; None outside Linux."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def _reset_peak_resident() -> float | None:
    """Start the peak anew at the present resident size, which is returned in bytes; None where that is impossible."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _resident("VmRSS")


def time_steps(step: Callable[[], Any], device: torch.device) -> tuple[float, float]:
    """Median and interquartile range of a step's time in milliseconds, after warm-up."""
    for _ in range(WARMUP_STEPS[device.type]):
        step()
    count = TIMED_STEPS[device.type]
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize(device)
        times = [a.elapsed_time(b) for a, b in pairwise(events)]
    else:
        marks = [time.perf_counter()]
        for _ in range(count):
            step()
            marks.append(time.perf_counter())
        times = (1e3 * np.diff(marks)).tolist()
    low, median, high = np.percentile(times, [25, 50, 75])
    return float(median), float(high - low)


def _load_libraries() -> None:
    """Page in torch's code by a step so small that it weighs nothing, or every model's memory would include it."""
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    torch.nn.functional.gelu(torch.nn.functional.layer_norm(layer(torch.randn(8, 8)), (8,))).softmax(
        -1
    ).sum().backward()
    optimizer.step()


def profile_training(config: RunConfig, accelerator: Accelerator) -> StepProfile:
    """Profile the training step at the protocol's batch size and full length, on random tokens on the device.

    On a CPU the figure for memory holds only in a process that did nothing else before.
    """
    device = accelerator.device
    _load_libraries()
    memory = PeakMemory(device)
    batch_size, seq_len = config.train.batch_size, config.data.max_len
    torch.manual_seed(config.seed)
    model = build_model(config).to(device).train()
    with device:
        batch = random_batch(config)
    step = TrainingStep(model, config, accelerator)
    median, iqr = time_steps(lambda: step(batch), device)
    accelerator.free_memory()
    return StepProfile(
        mode="train",
        batch_size=batch_size,
        seq_len=seq_len,
        step_time_ms=median,
        step_time_iqr_ms=iqr,
        tokens_per_sec=1e3 * len(batch.tokens) * batch_size * seq_len / median,
        peak_memory_mb=memory.mb(),
        peak_reserved_mb=memory.reserved_mb(),
    )
