"""What control groups, as containers and clusters set them, leave to a process."""

import math
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lra_bench import limits
from lra_bench.machine import default_threads
from lra_bench.memory import check_room

GB = 2**30


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the control groups of a machine with 64 GB of free memory are to be written; it is in none so far."""
    monkeypatch.setattr(limits, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GB))
    return tmp_path / "cgroup"


def put(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def member(groups: Path, *lines: str) -> None:
    (groups.parent / "membership").write_text("".join(f"{line}\n" for line in lines))


def test_without_control_groups_it_is_the_machine_s(groups: Path) -> None:
    assert limits.free_memory() == 64 * GB
    assert limits.processor_share() == math.inf


def test_the_narrowest_of_nested_groups_counts_and_the_page_cache_is_free(groups: Path) -> None:
    member(groups, "0::/job 7/step/task")
    put(groups, memory__stat="inactive_file 5")  # the root has no limits
    put(groups / "job 7", memory__max=8 * GB, memory__high="max", memory__current=6 * GB, cpu__max="250000 100000")
    put(groups / "job 7", memory__stat=f"anon {5 * GB}\ninactive_file {GB // 2}\nactive_file {GB // 2}")
    put(groups / "job 7/step", memory__max="max", memory__high="max", memory__current=5 * GB, cpu__max="max 100000")
    assert limits.free_memory() == 3 * GB
    assert limits.processor_share() == 2.5
    with pytest.raises(MemoryError, match=r"estimated 4\.0 GB for a training step; 3\.0 GB are free"):
        check_room(4 * GB)
    put(groups / "job 7/step", memory__high=6 * GB)  # beyond it a group is slowed down to nothing
    assert limits.free_memory() == GB
    put(groups / "job 7/step", memory__high=4 * GB)  # as after a limit was lowered
    assert limits.free_memory() == 0


def test_version_1_keeps_each_kind_in_a_tree_of_its_own(groups: Path) -> None:
    member(groups, "4:memory:/user/job", "3:cpu,cpuacct:/user", "1:name=systemd:/", "0::/")
    unlimited = 2**63 - 4096
    put(groups / "memory", memory__limit_in_bytes=unlimited, memory__usage_in_bytes=9 * GB)
    put(groups / "memory/user/job", memory__limit_in_bytes=4 * GB, memory__usage_in_bytes=3 * GB)
    put(groups / "memory/user/job", memory__stat=f"inactive_file 0\ntotal_inactive_file {GB}\ntotal_active_file 0")
    put(groups / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    put(groups / "cpu/user", cpu__cfs_quota_us=50000, cpu__cfs_period_us=100000)
    assert limits.free_memory() == 2 * GB
    assert limits.processor_share() == 0.5


def test_a_container_sees_its_own_group_as_the_root(groups: Path) -> None:
    member(groups, "9:memory:/docker/0123", "8:cpu:/docker/0123")
    put(groups / "memory", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=GB)
    put(groups / "cpu", cpu__cfs_quota_us=200000, cpu__cfs_period_us=100000)
    assert limits.free_memory() == GB
    assert limits.processor_share() == 2


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 8), ("800000 100000", 8), ("370000 100000", 3), ("1 9", 1)]
)
def test_there_are_no_more_threads_than_processors_to_run_them(
    groups: Path, monkeypatch: pytest.MonkeyPatch, quota: str, threads: int
) -> None:
    member(groups, "0::/")
    put(groups, cpu__max=quota)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert default_threads() == threads
