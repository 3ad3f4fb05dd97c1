"""Measured time."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F

from lra_bench.profiler import OtherProcesses, profile_inference, profile_training, time_steps

from .conftest import tiny

CPU = torch.device("cpu")


def test_median_and_spread_leave_warm_up_out(fast_profile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", iter((0.0, 0.2, 0.22, 0.26)).__next__)
    assert time_steps(lambda: None, CPU)[:3] == (pytest.approx(30), pytest.approx(10), 2)


def test_slow_steps_are_timed_fewer_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget of three seconds: all ten where they fit, else three, fewer where three would take far too long."""
    for duration, count in ((0.1, 10), (1.0, 3), (2.0, 3), (4.0, 2), (8.0, 1), (10.0, 1)):
        clock = count_up(duration)
        monkeypatch.setattr(time, "perf_counter", clock)
        timing = time_steps(lambda: None, CPU, seconds=3.0)
        assert timing[:3] == (pytest.approx(1e3 * duration), pytest.approx(0), count)


def test_the_first_step_counts_only_where_it_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory touched for the first time makes early steps several times as long."""
    for marks, median in (((0.0, 5.0, 7.0, 10.0), 2500), ((0.0, 20.0), 20_000)):
        monkeypatch.setattr(time, "perf_counter", iter(marks).__next__)
        assert time_steps(lambda: None, CPU, seconds=3.0).median == pytest.approx(median)


def count_up(step: float) -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: step * next(ticks)


@pytest.mark.usefixtures("fast_profile")
def test_full_batches_leave_sdpa_free_to_use_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no mask. A leaderboard's step has one, as batches with padding do."""
    masked: list[bool] = []
    attention = F.scaled_dot_product_attention

    def record(*args: torch.Tensor, attn_mask: torch.Tensor | None, **kwargs: float) -> torch.Tensor:
        masked.append(attn_mask is not None)
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    config, accelerator = tiny("sdpa"), Accelerator(cpu=True)
    profile_training(config, accelerator, full=True)
    profile_inference(config, accelerator)
    assert masked
    assert not any(masked)
    masked.clear()
    profile_training(config, accelerator)
    assert masked
    assert all(masked)


@pytest.mark.parametrize(("usable", "expected"), [({0, 4}, 80.0), ({1, 2, 3, 5}, 12.5), ({5}, 0.0), ({2, 9}, 31.25)])
def test_what_others_take_of_the_processors_is_told(
    monkeypatch: pytest.MonkeyPatch, usable: set[int], expected: float
) -> None:
    """Of ten seconds, in which this process took four; where one processor's times are not there, all count."""
    own = iter([7.0, 11.0])
    read = iter([[100.0] * 8, [110.0, 103.0, 103.0, 103.0, 110.0, 100.0, 100.0, 100.0]])
    monkeypatch.setattr(
        psutil, "cpu_times", lambda percpu: [SimpleNamespace(user=busy, idle=50.0) for busy in next(read)]
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda process: usable)
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    others = OtherProcesses()
    assert others.percent(0.1) is None
    assert others.percent(10.0) == pytest.approx(expected)


def test_a_busy_neighbour_is_noticed() -> None:
    spin = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    others, started = OtherProcesses(), time.perf_counter()
    subprocess.run([sys.executable, "-c", spin], check=True)
    seconds = time.perf_counter() - started
    found = others.percent(seconds)
    assert found is not None
    assert found > 100 * 0.9 / (seconds * len(os.sched_getaffinity(0)))  # its second at the least
