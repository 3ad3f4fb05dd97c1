"""What a run says of its machine."""

import pytest

from lra_bench.machine import describe_machine


def test_processors_of_one_name_are_told_apart_by_their_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = []
    for instructions in ("DEFAULT", "AVX2", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda found=instructions: found)
        labels.append(describe_machine("cpu", "fp32", threads=2).label)
    name = labels[0].removesuffix(", 2 threads")
    assert name
    assert labels == [f"{name}, 2 threads", f"{name} (AVX2), 2 threads", f"{name} (AVX512), 2 threads"]
