"""Shared by all tests: data caches and results stay inside pytest's temporary folders, the hub is never asked."""

import os
import random
from pathlib import Path

# As many processes as cores: threads of their own would stand in each other's way.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import pytest
import torch


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


def write_reviews(folder: Path, train: int = 200, test: int = 60) -> Path:
    """A tiny IMDb in the parquet layout under `folder`/imdb; the label shows in the words used."""
    rng = random.Random(0)
    (folder / "imdb").mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        labels = [i % 2 for i in range(count)]
        words = (["zzz", "bad", "qqq"], ["good", "fine", "nice"])
        texts = [" ".join(rng.choices(words[label], k=rng.randint(1, 60))) for label in labels]
        pd.DataFrame({"text": texts, "label": labels}).to_parquet(folder / "imdb" / f"{split}.parquet")
    return folder


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """Folder with a tiny IMDb."""
    return write_reviews(tmp_path / "data")
