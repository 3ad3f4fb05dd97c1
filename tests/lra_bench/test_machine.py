"""What a run says of its machine and its code."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lra_bench.machine import card_busy_percent, describe_code, describe_machine
from lra_bench.options import find_device


def test_processors_of_one_name_are_told_apart_by_their_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    for instructions in ("DEFAULT", "AVX2", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda found=instructions: found)
        labels.append(describe_machine("cpu", "fp32", threads=2).label)
    name = labels[0].removesuffix(", 2 threads")
    assert name
    assert labels == [f"{name}, 2 threads", f"{name} (AVX2), 2 threads", f"{name} (AVX512), 2 threads"]


@pytest.mark.parametrize(("told", "expected"), [("37", 37.0), ("0", 0.0), ("[N/A]", None), (None, None)])
def test_what_others_take_of_the_card_is_what_its_driver_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str | None, expected: float | None
) -> None:
    monkeypatch.setattr("lra_bench.machine.UTILIZATION_SECONDS", 0.0)
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid="0123-ab"))
    monkeypatch.setenv("PATH", str(tmp_path))
    if told is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "{told}"\n')
        program.chmod(0o755)
    assert card_busy_percent(torch.device("cuda", 1)) == expected
    if told is not None:
        asked = "--id=GPU-0123-ab --query-gpu=utilization.gpu --format=csv,noheader,nounits\n"
        assert (tmp_path / "asked").read_text() == asked


def test_the_commit_is_that_of_our_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    copy = tmp_path / "third_party" / "bench"
    (copy / "lra_bench").mkdir(parents=True)
    (copy / "lra_bench" / "machine.py").touch()
    (tmp_path / "other.py").touch()
    monkeypatch.setattr("lra_bench.machine.ROOT", copy)
    assert describe_code().commit == "unknown"
    git("init")
    git("add", "other.py")
    git("commit", "-m", "somebody else's")
    assert describe_code().commit == "unknown"
    git("add", ".")
    git("commit", "-m", "ours among it")
    (tmp_path / "other.py").write_text("changed")
    code = describe_code()
    assert (code.commit, code.dirty) == (git("rev-parse", "HEAD"), False)
    (copy / "lra_bench" / "machine.py").write_text("changed")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as of a checkout mounted into a container
    assert describe_code() == code.model_copy(update={"dirty": True})


def test_a_card_that_torch_does_not_see_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/nvidia-smi")
    assert find_device("cpu") == "cpu"
    assert capsys.readouterr().err == ""
    assert find_device("auto") == "cpu"
    assert "sees no CUDA card" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_device("auto") == "cpu"
    assert capsys.readouterr().err == ""
