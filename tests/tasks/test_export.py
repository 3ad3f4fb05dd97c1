"""Embedded data, exported and read back, is the same data under the same name: synthetic stays synthetic."""

from pathlib import Path

import pytest

from tasks import export_dataset, load_dataset


@pytest.mark.parametrize("task", ["text", "retrieval", "lm", "mt"])
def test_synthetic_data_keeps_its_name(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.text.EMBEDDED_SIZES", {"train": 40, "test": 10})
    monkeypatch.setattr("tasks.translation.EMBEDDED_SIZES", {"train": 400, "validation": 10, "test": 10})
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    dataset, fingerprint, *_ = load_dataset(task, "embedded")
    assert dataset.name.endswith("-synthetic")
    files = export_dataset(task, dataset, tmp_path / "out")
    for place in (tmp_path / "out", files[0].parent):
        again, found, *_ = load_dataset(task, place)
        assert again.name == dataset.name
        assert found == fingerprint or task == "lm"  # a text's last line gets its break
