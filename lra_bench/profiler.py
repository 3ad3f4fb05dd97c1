"""Step time and peak memory, measured."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import psutil
import torch
from accelerate import Accelerator

from .batching import Batch
from .config import RunConfig
from .machine import card_busy_percent
from .memory import PeakMemory
from .objectives import objective_of
from .records import Mode, StepProfile
from .sharing import NOT_SHARED, AtWork
from .step import TrainingStep

# Before these, the two steps under the memory trace have warmed up as well.
WARMUP_STEPS = {"cpu": 1, "cuda": 10}
TIMED_STEPS = {"cpu": 10, "cuda": 30}


class Timing(NamedTuple):
    """Median and interquartile range of a step's time in milliseconds, and of how many steps they are.

    other_cpu_percent: see StepProfile.
    """

    median: float
    iqr: float
    steps: int
    other_cpu_percent: float | None = None


def time_steps(step: Callable[[], Any], device: torch.device, seconds: float = math.inf) -> Timing:
    """Time a step again and again, after warm-up.

    seconds: on a CPU, once so much time is spent three timed steps are enough, after three times as much a single one
    is, the one that should have warmed up where there is no other.
    """
    warmup, count, other = WARMUP_STEPS[device.type], TIMED_STEPS[device.type], None
    if device.type == "cuda":
        for _ in range(warmup):
            step()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            step()
            event.record()
        torch.cuda.synchronize(device)
        times = [a.elapsed_time(b) for a, b in pairwise(events)]
    else:
        others = OtherProcesses()
        marks = [time.perf_counter()]
        spent = 0.0
        while len(marks) <= warmup + count and (spent < seconds or (len(marks) <= warmup + 3 and spent < 3 * seconds)):
            step()
            marks.append(time.perf_counter())
            spent = marks[-1] - marks[0]
        other = others.percent(spent)
        times = (1e3 * np.diff(marks)).tolist()
        times = times[warmup:] or times
    low, median, high = np.percentile(times, [25, 50, 75])
    return Timing(float(median), float(high - low), len(times), other)


class OtherProcesses:
    """How much time others take of the processors that this process may use, other virtual machines included."""

    # The kernel counts processor time in hundredths of a second.
    SHORTEST_SECONDS = 0.5

    def __init__(self) -> None:
        self._before, self._processors = self._read()

    @staticmethod
    def _read() -> tuple[float, int]:
        """Seconds of these processors' time that went to others so far, and how many processors they are."""
        each = psutil.cpu_times(percpu=True)
        if sys.platform == "linux":  # of a cluster's node a job has some, the others are not its concern
            usable = os.sched_getaffinity(0)
            # What is switched off is not in the list, which then says not whose its times are.
            each = [each[i] for i in usable] if max(usable) < len(each) else each
        names = ("user", "nice", "system", "irq", "softirq", "steal")
        return sum(getattr(times, name, 0.0) for times in each for name in names) - time.process_time(), len(each)

    def percent(self, seconds: float) -> float | None:
        """Of these processors during the `seconds` since the start; None where these are too few to tell."""
        if seconds < self.SHORTEST_SECONDS:
            return None
        return max(0.0, 100 * (self._read()[0] - self._before) / (seconds * self._processors))


def matmul_rate(device: torch.device, precision: Literal["fp32", "bf16"]) -> float:
    """Floating-point operations a second of one large matrix product, the rate that shares are taken of."""
    size = 2048 if device.type == "cpu" else 8192
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, size, size, device=device, dtype=dtype).unbind(0)
    return 2 * size**3 / (time_steps(lambda: a @ b, device).median / 1e3)


def profile_training(
    config: RunConfig,
    accelerator: Accelerator,
    compiled: bool = False,
    full: bool = False,
    seconds: float = math.inf,
    work: AtWork = NOT_SHARED,
) -> StepProfile:
    """Profile the training step at the protocol's batch size and full length, on random tokens on the device.

    Of several processes each takes its share of the batch; memory is that of one.

    compiled: as `compiling.compiles` answered, which has to be asked first; full: without masks, see Batch, else with
    masks that mark nothing, as a batch with padding costs; seconds: see `time_steps`; work: what other runs pause for.
    """
    torch.manual_seed(config.seed)
    processes = accelerator.num_processes
    objective = objective_of(config.per_process(processes))
    with accelerator.device:
        batch = objective.random_batch(full)
    with PeakMemory(accelerator.device) as memory:
        step = TrainingStep(objective, objective.build_model().to(accelerator.device).train(), accelerator, compiled)
        for _ in range(2):  # the optimiser's state appears at the end of the first
            step(batch)
    with work.alone():
        timing = time_steps(lambda: step(batch), accelerator.device, seconds)
        profile = _profile("train", config, batch, timing, memory, processes)
    accelerator.free_memory()
    return profile


def profile_inference(
    config: RunConfig, accelerator: Accelerator, seconds: float = math.inf, work: AtWork = NOT_SHARED
) -> StepProfile:
    """The same for the forward pass in evaluation of a full batch, which is never compiled."""
    torch.manual_seed(config.seed)
    objective = objective_of(config)
    with accelerator.device:
        batch = objective.random_batch(full=True)
    with torch.inference_mode(), accelerator.autocast():
        with PeakMemory(accelerator.device) as memory:
            model = objective.build_model().to(accelerator.device).eval()
            for _ in range(2):  # the memory of the second is that of the first, but it warms up
                objective.outputs(model, batch)
        with work.alone():
            timing = time_steps(lambda: objective.outputs(model, batch), accelerator.device, seconds)
            return _profile("inference", config, batch, timing, memory)


def _profile(
    mode: Mode, config: RunConfig, batch: Batch, timing: Timing, memory: PeakMemory, processes: int = 1
) -> StepProfile:
    single = processes == 1  # of several the others are the run's own
    return StepProfile(
        mode=mode,
        batch_size=config.train.batch_size,
        seq_len=config.data.max_len,
        step_time_ms=timing.median,
        step_time_iqr_ms=timing.iqr,
        timed_steps=timing.steps,
        tokens_per_sec=1e3 * processes * sum(tokens.numel() for tokens in batch.tokens) / timing.median,
        peak_memory_mb=memory.allocated_mb,
        peak_reserved_mb=memory.reserved_mb,
        other_cpu_percent=timing.other_cpu_percent if single else None,
        other_gpu_percent=card_busy_percent(memory.device) if single and memory.device.type == "cuda" else None,
    )
