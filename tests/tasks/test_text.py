"""The text task from every source, and the cache."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tasks import DataError, export_dataset, list_tasks, load_dataset, load_task, trivial_baselines
from tasks import text as text_module
from tasks.sources import cache_dir, hub_answers
from tasks.synthetic_reviews import MAX_BYTES, MIN_BYTES, generate_reviews


def decoded(split: object, index: int) -> bytes:
    tokens = split.inputs[0][index]  # type: ignore[attr-defined]
    return bytes((tokens - 1).astype(np.uint8))


def test_parquet_folder(reviews: Path) -> None:
    task = load_task("text", data=str(reviews), max_len=50)
    assert (task.dataset, task.num_classes, task.vocab_size, task.max_len) == ("imdb", 2, 257, 50)
    assert (len(task.train), len(task.validation), len(task.test)) == (160, 40, 60)
    assert task.validation.labels.mean() == task.train.labels.mean() == 0.5
    original = pd.read_parquet(reviews / "imdb" / "test.parquet")
    for i in range(60):
        assert decoded(task.test, i) == original["text"][i].encode()[:50]
        assert task.test.labels[i] == original["label"][i]
    assert max(task.train.inputs[0].lengths) <= 50


def test_what_byte_frequencies_tell_is_a_baseline(tmp_path: Path) -> None:
    # Of train, a says positive by 3, b negative by 3, c negative by 1: what "abb" is said to be, they do not tell.
    reviews = {"train": {"aab": 1, "bba": 0, "ccc": 0}, "test": {"aba": 1, "bbbba": 0, "cab": 0, "abb": 1}}
    for split, labels in reviews.items():
        frame = pd.DataFrame({"text": [*labels] * 10, "label": [*labels.values()] * 10})
        frame.to_parquet(tmp_path / f"{split}.parquet")
    task = load_task("text", data=tmp_path)
    assert trivial_baselines("text", task.train, task.test) == {"majority class": 50.0, "byte frequencies": 75.0}


def test_every_byte_survives_and_none_is_padding(tmp_path: Path) -> None:
    texts = ["\x00\x01 tab\t", "é ☃ 🎬", "plain", "more"] * 5
    for split in ("train", "test"):
        pd.DataFrame({"text": texts, "label": [0, 1] * 10}).to_parquet(tmp_path / f"{split}.parquet")
    task = load_task("text", data=tmp_path)
    assert [decoded(task.test, i) for i in range(20)] == [t.encode() for t in texts]
    assert task.test.inputs[0].tokens.min() >= 1


def test_train_and_validation_share_nothing_and_are_seeded(reviews: Path) -> None:
    first, second = load_task("text", data=reviews), load_task("text", data=reviews)
    held = set(first.validation.inputs[0].starts.tolist())
    assert not held & set(first.train.inputs[0].starts.tolist())
    assert len(held) + len(first.train) == 200
    assert np.array_equal(first.validation.inputs[0].starts, second.validation.inputs[0].starts)
    assert first.fingerprint == second.fingerprint


def test_acl_imdb_tree(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("pos", "neg"):
            folder = tmp_path / "aclImdb" / split / kind
            folder.mkdir(parents=True)
            for i in range(10):
                (folder / f"{i}_7.txt").write_text(f"{split} {kind} {i}", encoding="utf-8")
    task = load_task("text", data=tmp_path)
    assert task.dataset == "imdb"
    assert {(decoded(task.test, i), int(task.test.labels[i])) for i in range(20)} == {
        (f"test {kind} {i}".encode(), label) for i in range(10) for label, kind in enumerate(("neg", "pos"))
    }


@pytest.mark.parametrize("ending", ["é".encode(), "é".encode("latin-1")], ids=["UTF-8", "Latin-1"])
def test_any_bytes_are_exported_and_read_back(ending: bytes, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("pos", "neg"):
            folder = tmp_path / "aclImdb" / split / kind
            folder.mkdir(parents=True)
            (folder / "1.txt").write_bytes(b"A review, fin" + ending)
    dataset, fingerprint, *_ = load_dataset("text", tmp_path)
    export_dataset("text", dataset, tmp_path / "out")
    assert load_dataset("text", tmp_path / "out")[1] == fingerprint


@pytest.mark.parametrize("words", [("positive", "negative"), (" Pos", "NEG "), ("1", "0")])
def test_csv_gets_its_own_split_and_name(tmp_path: Path, words: tuple[str, str]) -> None:
    table = pd.DataFrame({"review": [f'"quoted", and\nbroken {i}' for i in range(40)], "sentiment": [*words] * 20})
    table.to_csv(tmp_path / "reviews.csv", index=False)
    task = load_task("text", data=tmp_path)
    assert task.dataset == "reviews-own-split"
    assert (len(task.train), len(task.validation), len(task.test)) == (16, 4, 20)
    parts = [task.train, task.validation, task.test]
    pairs = {(decoded(p, i).decode(), int(p.labels[i])) for p in parts for i in range(len(p))}
    assert pairs == set(zip(table["review"], (table["sentiment"] == words[0]).astype(int), strict=True))
    assert load_task("text", data=tmp_path / "reviews.csv").fingerprint == task.fingerprint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", "b"]}, "has no column 'label'"),
        ({"text": ["a", "b"], "label": [0, 2]}, "row 2 has label 2; expected 0 or 1"),
        ({"text": ["a", None], "label": [0, 1]}, "row 2 has no text"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, "label 0 or 1"),
        ({"text": [], "label": []}, "is empty"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, list[object]], message: str) -> None:
    for split in ("train", "test"):
        pd.DataFrame(columns).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(DataError, match=message):
        load_task("text", data=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"review,mood\na,b\n", "no column 'sentiment'"),
        (b"review,sentiment\na,positive\nb,meh\n", "row 3 has sentiment 'meh'"),
        (b"", "not a readable UTF-8 CSV"),
        (b"review,sentiment\n\xff\xfe,positive\n", "not a readable UTF-8 CSV"),
        (b'review,sentiment\na,positive,b,c\n"', "not a readable UTF-8 CSV"),
    ],
)
def test_bad_csv(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "reviews.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_task("text", data=tmp_path)


def test_other_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither auto, hub, embedded nor an existing folder"):
        load_task("text", data=tmp_path / "nowhere")
    with pytest.raises(DataError, match="no reviews in"):
        load_task("text", data=tmp_path)
    with pytest.raises(DataError, match=r"unknown task 'texd'; did you mean 'text'\?"):
        load_task("texd")
    (tmp_path / "train.parquet").write_bytes(b"nonsense")
    (tmp_path / "test.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"train\.parquet is not a whole parquet file"):
        load_task("text", data=tmp_path)


def test_cache_is_used_and_follows_the_files(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_task("text", data=reviews)
    with monkeypatch.context() as patch:
        patch.setattr(text_module, "_read_parquet", lambda files: pytest.fail("read again instead of from the cache"))
        assert load_task("text", data=reviews).fingerprint == first.fingerprint
    table = pd.read_parquet(reviews / "imdb" / "test.parquet")
    table.assign(text=table["text"] + "!").to_parquet(reviews / "imdb" / "test.parquet")
    assert load_task("text", data=reviews).fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damaged_cache_is_named_and_rebuilt(
    reviews: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    first = load_task("text", data=reviews)
    (file,) = cache_dir().glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes({"flip": content, "truncate": content[:-50], "empty": b""}[damage])
    assert load_task("text", data=reviews).fingerprint == first.fingerprint
    assert f"{file} is damaged" in capsys.readouterr().err
    load_task("text", data=reviews)
    assert capsys.readouterr().err == ""


def test_processes_at_once_prepare_once(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    code = """
import sys, time
from pathlib import Path
from tasks import load_task, text
read = text._read_parquet
def counted(files):
    with open(sys.argv[2], "a") as log:
        log.write("read\\n")
    time.sleep(0.5)
    return read(files)
text._read_parquet = counted
print(load_task("text", data=sys.argv[1]).fingerprint)
"""
    command = [sys.executable, "-c", code, str(reviews), str(tmp_path / "log")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    prints = {process.communicate(timeout=60)[0] for process in processes}
    assert len(prints) == 1
    assert (tmp_path / "log").read_text() == "read\n" * 2  # train and test, once each


def test_cache_folder_that_cannot_be_written(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set LRA_BENCH_CACHE"):
        load_task("text", data=reviews)


@pytest.fixture
def few_embedded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer synthetic reviews, in a cache that other tests do not see."""
    monkeypatch.setattr(text_module, "EMBEDDED_SIZES", {"train": 60, "test": 20})
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))


def test_embedded_is_synthetic_in_name_and_size(few_embedded: None) -> None:
    task = load_task("text", data="embedded")
    assert task.dataset == "reviews-synthetic"
    assert (len(task.train), len(task.validation), len(task.test)) == (48, 12, 20)


def test_synthetic_reviews() -> None:
    texts, labels = generate_reviews(400, seed=3)
    assert (texts, labels) == generate_reviews(400, seed=3)
    assert texts != generate_reviews(400, seed=4)[0]
    assert sum(labels) == 200
    sizes = np.array([len(t) for t in texts])
    assert MIN_BYTES <= sizes.min() < 600
    assert 4_000 < sizes.max() <= MAX_BYTES


def test_synthetic_label_is_the_last_verdict_on_the_named_film() -> None:
    """An independent reader: find the film in the first sentence, then the polarity of its last verdict."""
    import re

    from tasks.synthetic_reviews import _PRAISE, _SCORN

    texts, labels = generate_reviews(300, seed=5)
    polarity = {**dict.fromkeys(_PRAISE, 1), **dict.fromkeys(_SCORN, 0)}
    negations = ("is not ", "never call", "Nobody could", "nothing ")
    reversed_late = 0
    for text, label in zip(texts, labels, strict=True):
        sentences = re.split(r"(?<=[.!])\s+(?=[A-Z])", text.decode())
        film = re.search(r"The [A-Z]\w+ [A-Z]\w+", sentences[0])
        assert film
        verdicts = []
        for sentence in sentences[1:]:
            words = [w for w in re.findall(r"\w+", sentence) if w in polarity]
            if film[0] in sentence and words:
                negated = any(n in sentence for n in negations)
                verdicts.append(polarity[words[-1]] != negated)
        assert verdicts[-1] == bool(label)
        reversed_late += verdicts[0] != verdicts[-1]
    assert 0.12 < reversed_late / 300 < 0.28


def test_auto_falls_back_and_says_so(few_embedded: None) -> None:
    task = load_task("text", data="auto")
    assert (task.data, task.dataset) == ("embedded", "reviews-synthetic")
    assert task.source == "embedded generator (the hub did not answer for stanfordnlp/imdb)"


def test_a_hub_that_hangs_costs_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from huggingface_hub import HfApi

    monkeypatch.setattr(HfApi, "dataset_info", lambda *a, **k: time.sleep(60))
    started = time.perf_counter()
    assert not hub_answers("a/b", "main", timeout_s=0.2)
    assert time.perf_counter() - started < 5


def test_listing_tasks_does_not_import_torch() -> None:
    code = "import sys, tasks; assert not {'torch', 'pandas'} & set(sys.modules); print(tasks.list_tasks())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(list_tasks())
