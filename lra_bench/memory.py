"""Memory of a training step: its peak, whether there is room for it, and keeping it from one step to the next."""

from __future__ import annotations

import ctypes
import os
import platform
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from .config import reason_of
from .limits import free_memory

MIB = 2.0**20

# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed_memory(needed: int = 0) -> bool:
    """Let the C library keep what tensors free, as torch does on CUDA, instead of returning it to the kernel.

    By default glibc maps every large tensor anew, and the kernel zeroes its pages on first touch: a third and more of
    an attention layer's time on a CPU (docs/performance.md). The process then stays as large as it once was, or larger,
    since glibc does not fit an aligned block into the place of one of the same size: a step of `needed` bytes keeps
    none where that is more than an eighth of what is free.

    Returns whether memory is kept: not with another C library, and MALLOC_ variables of the user's stay in force.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    if 8 * needed > free_memory():
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, -1))


def release_freed_memory() -> None:
    """Give back to the kernel what `keep_freed_memory` kept, before another model runs in the same process."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


class PeakMemory:
    """Peak memory of the device while the context lasts, in MiB.

    allocated_mb: the most that tensors held at once, as torch's allocators tell, those that existed before left out
    on a CPU; reserved_mb: on CUDA what the caching allocator held, on a CPU the growth of the process's resident
    memory, None where /proc does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated_mb = 0.0
        self.reserved_mb: float | None = None

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return self
        # Kineto logs its start and its stop otherwise.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._baseline = _reset_peak_resident()
        # torch 2.11 warns unless events of several cycles, of which there is one, are asked for.
        self._trace = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )
        self._trace.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            self.allocated_mb = torch.cuda.max_memory_allocated(self.device) / MIB
            self.reserved_mb = torch.cuda.max_memory_reserved(self.device) / MIB
            return
        peak = _resident("VmHWM")
        if peak is not None and self._baseline is not None:
            self.reserved_mb = (peak - self._baseline) / MIB
        self._trace.__exit__(kind, error, trace)
        self.allocated_mb = _peak_allocated(self._trace) / MIB


def _peak_allocated(trace: Any) -> int:
    """Bytes: the highest point of the allocations and releases that a torch profiler saw."""
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


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


def check_room(needed: int) -> None:
    """Raise MemoryError for a step of `needed` bytes that a CPU has no room for: trying would take it down."""
    free = free_memory()
    if needed > free:
        raise MemoryError(f"estimated {needed / 2**30:.1f} GB for a training step; {free / 2**30:.1f} GB are free")


def failure(error: BaseException) -> dict[str, str]:
    """Status and reason that `error` gives a cell's record; what is not want of memory has its traceback printed."""
    out_of_memory = is_out_of_memory(error)
    if not out_of_memory:
        traceback.print_exception(error)
    return {"status": "oom" if out_of_memory else "failed", "reason": reason_of(error)}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the device or on the host."""
    # torch's CPU allocator has no exception of its own.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
