"""Language modelling: segments, readers, words, baselines."""

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tasks import DataError, export_dataset, load_dataset, load_task, trivial_baselines
from tasks.parquet import write_parquet

TEXTS = {
    "train": "To be, or not to be,\nthat is the question:\n" * 20,
    "validation": "to be\n" * 9,
    "test": "To be?\n" * 8,
}


def write_lines(folder: Path, name: str = "hamlet") -> Path:
    for split, text in TEXTS.items():
        write_parquet(folder / f"{name}_{split}.parquet", {"text": text.removesuffix("\n").split("\n")})
    return folder


def text_of(split: object) -> bytes:
    """The text behind segments: every one but the first begins with the last token of the one before."""
    segments = split.inputs[0]  # type: ignore[attr-defined]
    tokens = [segments[0], *(segments[i][1:] for i in range(1, len(segments)))]
    return (np.concatenate(tokens) - 1).astype(np.uint8).tobytes()


@pytest.mark.parametrize("length", [1, 7, 64, 5000])
def test_every_token_but_the_first_is_predicted_once(tmp_path: Path, length: int) -> None:
    task = load_task("lm", write_lines(tmp_path), max_len=length)
    assert task.dataset == "hamlet"
    for name, text in TEXTS.items():
        split = getattr(task, name)
        segments = split.inputs[0]
        assert text_of(split) == text.encode()
        assert sum(segments.lengths - 1) == len(text) - 1
        assert segments.lengths.max() <= length + 1
        assert segments.lengths.min() >= 2


def test_rows_with_and_without_line_breaks_are_one_text(tmp_path: Path) -> None:
    for split, text in TEXTS.items():
        write_parquet(tmp_path / "b" / f"hamlet_{split}.parquet", {"text": text.splitlines(keepends=True)})
    a, b = load_dataset("lm", write_lines(tmp_path / "a")), load_dataset("lm", tmp_path / "b")
    assert a[1] == b[1]


def test_release_files_one_txt_and_a_chosen_text(tmp_path: Path) -> None:
    release = tmp_path / "wikitext"
    release.mkdir()
    for split, short in (("train", "train"), ("validation", "valid"), ("test", "test")):
        (release / f"wiki.{short}.tokens").write_text(TEXTS[split])
    assert text_of(load_task("lm", release).test) == TEXTS["test"].encode()
    (tmp_path / "book.txt").write_text("x" * 90 + "y" * 5 + "z" * 5)
    book = load_task("lm", tmp_path / "book.txt", max_len=1000)
    assert [text_of(s) for s in (book.train, book.validation, book.test)] == [b"x" * 90, b"y" * 5, b"z" * 5]
    assert book.dataset == "book-own-split"
    folder = write_lines(write_lines(tmp_path / "lm", "macbeth"), "hamlet")
    assert load_task("lm", folder).dataset == load_task("lm", tmp_path).dataset == "hamlet"
    assert load_task("lm", folder / "macbeth_train.parquet").dataset == "macbeth"


def test_export_is_read_back(tmp_path: Path) -> None:
    dataset, fingerprint, *_ = load_dataset("lm", write_lines(tmp_path))
    export_dataset("lm", dataset, tmp_path / "out")
    assert load_dataset("lm", tmp_path / "out")[1] == fingerprint


def test_a_text_that_is_not_utf8_is_exported_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "cafe.txt").write_bytes(b"caf\xe9.\n" * 100)
    dataset, fingerprint, *_ = load_dataset("lm", tmp_path / "cafe.txt")
    export_dataset("lm", dataset, tmp_path / "out")
    assert load_dataset("lm", tmp_path / "out")[1] == fingerprint


def test_words_are_numbered_by_frequency(tmp_path: Path) -> None:
    task = load_task("wikitext103", write_lines(tmp_path), max_len=10_000)
    tokens = task.train.inputs[0][0]
    assert task.dataset == "hamlet-words"
    # <eos> 40, To not be, ... once a line: 1 is the commonest.
    assert np.bincount(tokens)[1] == 40
    counts = np.bincount(tokens)[1:]
    assert (np.diff(counts) <= 0).all()
    assert len(tokens) == 20 * (6 + 1 + 4 + 1)
    # A word that train does not have is <unk>, or where there is none the rarest.
    assert task.test.inputs[0][0].max() <= len(counts)


def test_baselines_by_hand(tmp_path: Path) -> None:
    task = load_task("lm", write_lines(tmp_path), max_len=64)
    found = trivial_baselines("lm", task.train, task.test)
    counts = {c: TEXTS["train"].count(c) + 1 for c in set(TEXTS["train"])}
    total = len(TEXTS["train"]) + 257
    expected = [-math.log2(counts.get(c, 1) / total) for c in TEXTS["test"][1:]]
    assert found["byte frequencies"] == pytest.approx(sum(expected) / len(expected))
    train, test = TEXTS["train"], TEXTS["test"]
    pairs, firsts = Counter(pairwise(train)), Counter(train[:-1])
    expected = [-math.log2((pairs[a, b] + 1) / (firsts[a] + 257)) for a, b in pairwise(test)]
    assert found["frequencies after the byte before"] == pytest.approx(sum(expected) / len(expected))
    words = load_task("wikitext103", write_lines(tmp_path), max_len=64)
    seen, asked = (split.inputs[0].tokens.tolist() for split in (words.train, words.test))
    known = Counter(seen)
    nats = [-math.log((known[word] + 1) / (len(seen) + words.vocab_size)) for word in asked[1:]]
    found = trivial_baselines("wikitext103", words.train, words.test)
    assert found == {"word frequencies": pytest.approx(math.exp(sum(nats) / len(nats)))}


def test_embedded_is_the_same_every_time_and_said_to_be_synthetic() -> None:
    task = load_task("lm", "embedded")
    assert task.dataset == "prose-synthetic"
    assert len(task.train) > 1000


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no text in"),
        ({"a_train.parquet": {"text": ["x"]}}, "no text in"),
        ({f"a_{s}.parquet": {"text": ["x", None]} for s in TEXTS}, "a row has no text"),
        ({f"a_{s}.parquet": {"text": [1, 2]} for s in TEXTS}, "text must be a string"),
        ({f"a_{s}.parquet": {"line": ["x"]} for s in TEXTS}, "no column 'text'"),
        ({f"a_{s}.parquet": {"text": [""]} for s in TEXTS}, "give one with at least 2"),
    ],
)
def test_bad_texts_are_named(tmp_path: Path, files: dict[str, dict[str, list[object]]], message: str) -> None:
    for name, columns in files.items():
        write_parquet(tmp_path / name, columns)
    with pytest.raises(DataError, match=message):
        load_task("lm", tmp_path)


def test_words_must_be_utf8(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("für \n".encode("latin-1") * 50)
    with pytest.raises(DataError, match="not UTF-8"):
        load_task("wikitext103", tmp_path / "latin.txt")
    assert len(load_task("lm", tmp_path / "latin.txt").train) == 1
