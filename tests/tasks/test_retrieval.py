"""Retrieval: parquet and release layouts, the embedded set."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tasks import DataError, Split, Task, export_dataset, load_dataset, load_task, trivial_baselines
from tasks.packed import pack_bytes
from tasks.retrieval import _similarity

TEXTS = {"P1": "first paper é", "P2": 'a "second" one', "P3": "third"}
PAIRS = [(1, "P1", "P2"), (0, "P1", "P3"), (0, "P3", "P2")]


def write_parquet(folder: Path) -> Path:
    folder.mkdir()
    pd.DataFrame({"id": list(TEXTS), "text": list(TEXTS.values())}).to_parquet(folder / "documents.parquet")
    for split in ("train", "validation", "test"):
        table = pd.DataFrame(PAIRS, columns=["label", "id1", "id2"])
        table.to_parquet(folder / f"pairs_{split}.parquet")
    return folder


def write_release(folder: Path, rows: list[bytes] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    lines = rows or [f"{float(label)}\t{a}\t{b}\t{TEXTS[a]}\t{TEXTS[b]}\n".encode() for label, a, b in PAIRS]
    for name in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(b"".join(lines))
    return folder


def decoded(task: Task) -> list[tuple[str, str, int]]:
    texts = [[(s[i] - 1).astype(np.uint8).tobytes().decode() for i in range(len(s))] for s in task.test.inputs]
    return list(zip(*texts, task.test.labels.tolist(), strict=True))


EXPECTED = [(TEXTS[a], TEXTS[b], label) for label, a, b in PAIRS]


def test_parquet_and_release_give_the_same_pairs(tmp_path: Path) -> None:
    parquet = load_task("retrieval", data=write_parquet(tmp_path / "acl"))
    release = load_task("retrieval", data=write_release(tmp_path / "tsv_data"))
    assert decoded(parquet) == decoded(release) == EXPECTED
    assert (parquet.dataset, release.dataset) == ("acl", "aan")
    # Each document once, however many pairs name it.
    assert len(release.train.inputs[0].tokens) == sum(len(t.encode()) for t in TEXTS.values())
    assert release.train.inputs[0].tokens is release.test.inputs[1].tokens


def test_cached_pairs_are_the_same(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path / "acl")
    first, second = load_task("retrieval", data=folder), load_task("retrieval", data=tmp_path)
    assert decoded(first) == decoded(second)
    assert first.fingerprint == second.fingerprint
    assert second.train.inputs[0].tokens is second.test.inputs[1].tokens


def test_release_texts_are_cut_and_quotes_are_literal(tmp_path: Path) -> None:
    row = b'1.0\ta\tb\t"open quote\t' + b"x" * 20_000 + b"\n"
    task = load_task("retrieval", data=write_release(tmp_path / "aan", [row]), max_len=50_000)
    assert decoded(task) == [('"open quote', "x" * 10_000, 1)]


def test_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    task = load_task("retrieval", data="auto")
    assert task.dataset == "citations-synthetic"
    for split in (task.train, task.validation, task.test):
        assert split.labels.mean() == 0.5
    citing = [set(s.inputs[0].starts.tolist()) for s in (task.train, task.validation, task.test)]
    assert not citing[0] & citing[1]
    assert not citing[0] & citing[2]
    assert not citing[1] & citing[2]
    dataset, fingerprint, *_ = load_dataset("retrieval", "embedded")
    assert fingerprint == dataset.fingerprint() == task.fingerprint
    # A positive's second paper is named, with author and year, in the first one's text; most negatives' is not.
    whole = load_task("retrieval", data="embedded", max_len=10_000).test
    first, second = ([(s[i] - 1).astype(np.uint8).tobytes().decode() for i in range(len(s))] for s in whole.inputs)
    named = np.array([b.split("\n")[1].replace(",", "") in a for a, b in zip(first, second, strict=True)])
    assert named[whole.labels == 1].all()
    assert named[whole.labels == 0].mean() < 0.02


def test_export_reads_back(tmp_path: Path) -> None:
    dataset, *_ = load_dataset("retrieval", write_parquet(tmp_path / "acl"))
    export_dataset("retrieval", dataset, tmp_path / "out")
    assert decoded(load_task("retrieval", data=tmp_path / "out")) == EXPECTED


def test_a_document_cut_within_a_letter_is_exported_and_read_back(tmp_path: Path) -> None:
    rows = [f"1.0\tA\tB\t{'é' * 5000}x\ty{'é' * 5000}\n".encode()]  # 10,001 bytes each, of which 10,000 are kept
    dataset, fingerprint, *_ = load_dataset("retrieval", write_release(tmp_path / "aan", rows))
    export_dataset("retrieval", dataset, tmp_path / "out")
    assert load_dataset("retrieval", tmp_path / "out")[1] == fingerprint


def test_popularity_alone_predicts_nothing() -> None:
    """Negatives are drawn as the positives' second papers are, so counting how often a paper is cited is no help."""
    task = load_task("retrieval", data="embedded")
    cited, counts = np.unique(task.train.inputs[1].starts, return_counts=True)
    popularity = dict(zip(cited.tolist(), counts.tolist(), strict=True))
    seen = np.array([popularity.get(start, 0) for start in task.test.inputs[1].starts.tolist()])
    guess = (seen > np.median(seen)).astype(int)
    assert abs((guess == task.test.labels).mean() - 0.5) < 0.06


def similarity_naive(first: bytes, second: bytes) -> float:
    a, b = (Counter(text[i : i + 4] for i in range(len(text) - 3)) for text in (first, second))
    norm = (sum(n * n for n in a.values()) * sum(n * n for n in b.values())) ** 0.5
    return sum(a[run] * b[run] for run in a) / norm if norm else 0.0


def pairs_of(rows: list[tuple[bytes, bytes, int]]) -> Split:
    first, second, labels = zip(*rows, strict=True)
    return Split((pack_bytes(list(first)), pack_bytes(list(second))), np.array(labels, np.int64))


def test_the_guess_from_shared_runs_of_bytes() -> None:
    same, like, unlike, short = b"attention is", b"attention as", b"\xff\x00other \xfe", b"abc"
    rows = [(same, same, 1), (same, like, 1), (like, unlike, 0), (short, short, 0), (short, b"", 0), (unlike, same, 1)]
    pairs = pairs_of(rows)
    assert _similarity(pairs) == pytest.approx([similarity_naive(a, b) for a, b, _ in rows])
    # The threshold is between nothing and the least of the two citations that share anything; the third is missed.
    found = trivial_baselines("retrieval", pairs, pairs)
    assert found == {"majority class": 50.0, "shared runs of 4 bytes": pytest.approx(100 * 5 / 6)}
    # It is the training's, above what the first of these pairs shares.
    other = pairs_of([(b"attention", b"inattentive", 1), (unlike, same, 0), (short, same, 0), (like, like, 1)])
    assert trivial_baselines("retrieval", pairs, other)["shared runs of 4 bytes"] == 75.0
    # Nothing but citations in training: all are taken for them.
    ones = pairs_of([(a, b, 1) for a, b, _ in rows])
    assert trivial_baselines("retrieval", ones, pairs)["shared runs of 4 bytes"] == 50.0


def test_no_files_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected documents\.parquet with pairs_"):
        load_task("retrieval", data=tmp_path)
