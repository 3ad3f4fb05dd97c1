"""A cell in a process of its own, so that a crash or an out-of-memory kill ends that cell alone."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import psutil


@dataclass(frozen=True)
class Ending:
    """code: of the process, negative for a signal; stopped: by whom it was told to end early, if it was."""

    code: int
    stopped: Literal["", "user", "time"] = ""

    @property
    def reason(self) -> tuple[Literal["oom", "failed", "interrupted"], str]:
        """Status and reason of a cell that left no record."""
        if self.stopped == "user":
            return "interrupted", "stopped by the user before the first step"
        if self.stopped == "time":
            return "interrupted", "the time given was up before the first step"
        if self.code == -signal.SIGKILL:
            return "oom", "killed by SIGKILL, most likely for want of memory"
        return "failed", f"the process ended with code {self.code} and left no record"


def run_module(module: str, plan: str, seconds: float | None = None) -> Ending:
    """Run `python -m module` with `plan` on its standard input. seconds: after which it is told to stop."""
    # In a session of its own, so that Ctrl-C reaches the cell once, from here, and not a second time while it saves.
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ},  # the memory trace warns of tensors older than itself
    )
    stopped: Literal["", "user", "time"] = ""
    try:
        process.communicate(plan, timeout=seconds)
    except (KeyboardInterrupt, subprocess.TimeoutExpired) as error:
        stopped = "user" if isinstance(error, KeyboardInterrupt) else "time"
        process.send_signal(signal.SIGTERM)
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
    return Ending(process.returncode, stopped)


def limit_address_space() -> None:
    """Let this process have the memory that is free now and no more, so that it fails before the machine does."""
    in_use = psutil.Process().memory_info().vms
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = in_use + psutil.virtual_memory().available
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one dies: no cell outlives a killed sweep.

    On Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def stop_on_sigterm() -> None:
    """Make SIGTERM what Ctrl-C is, so that a cell that is told to stop saves first."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
