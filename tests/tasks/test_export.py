"""Data exported and read back is the same under the same name: synthetic or home-made stays what it is."""

from pathlib import Path

import pandas as pd
import pytest

from tasks import export_dataset, load_dataset
from tasks.packed import unpack_bytes


# Fingerprints. Where a generator draws otherwise than it did, a cache made before holds other data under the same name:
# raise `version` in configs/tasks with these.
@pytest.mark.parametrize(
    ("task", "drawn"),
    [("text", "f1574c5dd531"), ("retrieval", "86d1c62fdc42"), ("lm", "30615bf5da2b"), ("mt", "b5054f5b9255")],
)
def test_synthetic_data_stays_what_it_is(
    task: str, drawn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.text.EMBEDDED_SIZES", {"train": 40, "test": 10})
    monkeypatch.setattr("tasks.translation.EMBEDDED_SIZES", {"train": 400, "validation": 10, "test": 10})
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    dataset, fingerprint, *_ = load_dataset(task, "embedded")
    assert dataset.name.endswith("-synthetic")
    assert fingerprint.startswith(drawn)
    files = export_dataset(task, dataset, tmp_path / "out")
    for place in (tmp_path / "out", files[0].parent):
        again, found, *_ = load_dataset(task, place)
        assert again.name == dataset.name
        assert found == fingerprint or task == "lm"  # a text's last line gets its break


def test_other_reviews_in_the_same_layout_are_not_imdb(tmp_path: Path) -> None:
    for folder, name in (("imdb", "imdb"), ("plain_text", "imdb"), ("yelp", "yelp")):
        for split in ("train", "test"):
            (tmp_path / folder).mkdir(exist_ok=True)
            pd.DataFrame({"text": ["a", "b"] * 5, "label": [0, 1] * 5}).to_parquet(
                tmp_path / folder / f"{split}.parquet"
            )
        dataset, *_ = load_dataset("text", tmp_path / folder)
        assert dataset.name == name


def test_a_data_set_is_called_as_its_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("blobs", "imdb", "mine"):
        (tmp_path / folder).mkdir()
    for split in ("train", "validation", "test"):
        pd.DataFrame({"text": ["a", "b"] * 5, "label": [0, 1] * 5}).to_parquet(tmp_path / "blobs" / f"0{split}")
        (tmp_path / "imdb" / f"{split}.parquet").symlink_to(tmp_path / "blobs" / f"0{split}")  # as the hub's cache does
        pd.DataFrame({"en": ["one"], "de": ["eins"]}).to_parquet(tmp_path / "mine" / f"{split}.parquet")
    assert load_dataset("text", tmp_path)[0].name == "imdb"
    monkeypatch.chdir(tmp_path / "mine")
    assert load_dataset("mt", ".")[0].name == "mine"


def test_a_table_of_ones_own_does_not_become_imdb(tmp_path: Path) -> None:
    reviews = [f"review {i}" for i in range(20)]
    pd.DataFrame({"review": reviews, "sentiment": ["positive", "negative"] * 10}).to_csv(tmp_path / "mine.csv")
    dataset, *_ = load_dataset("text", tmp_path / "mine.csv")
    files = export_dataset("text", dataset, tmp_path / "out")
    again, *_ = load_dataset("text", files[0].parent)
    assert again.name == dataset.name == "mine-own-split"
    for split in ("train", "test"):
        first, second = (unpack_bytes(data.splits[split].inputs[0]) for data in (dataset, again))
        assert first == second
