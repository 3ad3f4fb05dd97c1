"""Measured time."""

import time

import torch

from lra_bench.profiler import time_steps

CPU = torch.device("cpu")


def test_median_and_spread_leave_warm_up_out(fast_profile: None) -> None:
    durations = iter([0.2, 0.02, 0.04])
    median, iqr = time_steps(lambda: time.sleep(next(durations)), CPU)
    assert 29 < median < 60
    assert 9 < iqr < 40
