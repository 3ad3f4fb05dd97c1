"""Peak memory, and keeping what is freed."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lra_bench.isolated import ENVIRONMENT, limit_address_space
from lra_bench.memory import MIB, PeakMemory, check_room, is_out_of_memory, keep_freed_memory

CPU = torch.device("cpu")
BLOCK = 2**20 // 4  # floats in a MiB


def test_allocated_is_the_most_that_lived_at_once() -> None:
    before = torch.ones(64 * BLOCK)
    with PeakMemory(CPU) as memory:
        first = torch.ones(30 * BLOCK)
        second = first * 2
        del first, second
        third = before[: 10 * BLOCK] + 1
    assert memory.allocated_mb == pytest.approx(60, abs=0.1)
    assert third.nbytes == 10 * MIB


def test_allocated_includes_what_backward_keeps() -> None:
    x = torch.ones(10 * BLOCK, requires_grad=True)
    with PeakMemory(CPU) as memory:
        x.exp().exp().sum().backward()
    # Two results kept, then the gradients of both; the first result is still there when the second gradient appears.
    assert 30 <= memory.allocated_mb <= 51


@pytest.mark.skipif(sys.platform != "linux", reason="peak resident memory can be reset on Linux only")
def test_reserved_is_the_growth_of_the_process_without_what_was_there_before() -> None:
    code = """
import torch
from lra_bench.memory import PeakMemory
with PeakMemory(torch.device("cpu")):
    torch.ones(9).sum()  # what tracing itself loads
before = torch.ones(64 * 2**20 // 4)
with PeakMemory(torch.device("cpu")) as memory:
    temporary = torch.ones(200 * 2**20 // 4)
    del temporary
print(memory.reserved_mb)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 195 < float(done.stdout) < 215
    assert "profiler" not in done.stderr


def test_reserved_is_unknown_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra_bench.memory._resident", lambda field: None)
    with PeakMemory(CPU) as memory:
        torch.ones(BLOCK)
    assert memory.reserved_mb is None
    assert memory.allocated_mb == pytest.approx(1, abs=0.01)


def test_freed_memory_is_kept_only_where_asked() -> None:
    code = """
import sys, psutil, torch
from lra_bench.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
size = psutil.Process().memory_info().rss
block = torch.ones(200 * 2**20 // 4)
del block
print(int(kept), (psutil.Process().memory_info().rss - size) / 2**20)
"""
    grown = {}
    for mode in ("keep", "return"):
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, check=True)
        kept, megabytes = done.stdout.split()
        grown[mode] = float(megabytes)
        if mode == "keep" and kept == "0":
            pytest.skip("not glibc")
    assert grown["keep"] > 195
    assert grown["return"] < 20


def test_a_cell_s_environment_has_huge_pages() -> None:
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not modes.exists() or "[madvise]" not in modes.read_text(encoding="ascii"):
        pytest.skip("the kernel has no huge pages for those who ask")
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        pytest.skip("the C library does not ask for huge pages")
    code = """
import torch
from pathlib import Path
block = torch.ones(200 * 2**20 // 4)
lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) / 2**10)
"""
    command = [sys.executable, "-c", code]
    for own, huge in (({}, True), ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, False)):
        done = subprocess.run(
            command, env={**os.environ, **ENVIRONMENT, **own}, capture_output=True, text=True, check=True
        )
        assert (float(done.stdout) > 100) == huge


def test_the_user_s_own_malloc_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert not keep_freed_memory()


def test_the_limit_of_the_address_space_is_linux_s(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.setrlimit", lambda _, limit: limits.append(limit))
    limit_address_space()
    assert len(limits) == 1
    assert limits[0][0] > 2**30
    monkeypatch.setattr("sys.platform", "darwin")
    limit_address_space()
    assert len(limits) == 1


def test_a_step_without_room_is_refused() -> None:
    check_room(1)
    with pytest.raises(MemoryError, match=r"estimated 1024\.0 GB for a training step; .* GB are free") as raised:
        check_room(2**40)
    assert is_out_of_memory(raised.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("another"))
