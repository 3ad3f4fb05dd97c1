"""Measured time and memory."""

import subprocess
import sys
import time

import pytest
import torch

from lra_bench.profiler import PeakMemory, time_steps

CPU = torch.device("cpu")


def test_median_and_spread_leave_warm_up_out(fast_profile: None) -> None:
    durations = iter([0.2, 0.02, 0.04])
    median, iqr = time_steps(lambda: time.sleep(next(durations)), CPU)
    assert 29 < median < 60
    assert 9 < iqr < 40


@pytest.mark.skipif(sys.platform != "linux", reason="peak resident memory can be reset on Linux only")
def test_peak_memory_counts_what_was_freed_but_not_what_was_there_before() -> None:
    code = """
import torch
from lra_bench.profiler import MIB, PeakMemory
before = torch.ones(64 * 2**20 // 4)
memory = PeakMemory(torch.device("cpu"))
temporary = torch.ones(200 * 2**20 // 4)
del temporary
print(memory.mb())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 195 < float(done.stdout) < 215


def test_memory_outside_linux_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra_bench.profiler._resident", lambda field: None)
    assert PeakMemory(CPU).mb() is None
