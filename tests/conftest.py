"""Shared by all tests: caches, results and locks stay inside pytest's temporary folders, the hub is never asked."""

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

# As many processes as cores: threads of their own would stand in each other's way.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import pytest
import torch
from accelerate.state import AcceleratorState

COMPILED = os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_lra_bench_tests")


def pytest_configure(config: pytest.Config) -> None:
    """The tests are of the CPU whatever the machine has; a card has its own, `make test-cuda`."""
    if config.option.markexpr != "cuda":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _isolated(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("LRA_BENCH_CACHE", f"{folder}/cache")
    # Neither tests side by side nor the user's own runs pause for each other, see lra_bench/sharing.py; what torch has
    # compiled is shared all the same.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", COMPILED)
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


@pytest.fixture
def own_accelerator() -> Iterator[None]:
    """accelerate keeps a process's first device and precision for every accelerator after it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


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
