"""Everything that can be wrong with data: each case one line that names the place and the remedy, nothing half-written.

make test ARGS="tests/tasks/test_bad_input.py -v"    lists the cases
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tasks import DataError, load_task
from tasks.sources import cache_dir

from .test_retrieval import PAIRS, TEXTS, write_parquet, write_release

Case = tuple[str, str, Callable[[Path], Path], str]


def parquet_reviews(**columns: list[object]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        for split in ("train", "test"):
            pd.DataFrame(columns).to_parquet(folder / f"{split}.parquet")
        return folder

    return build


def csv_reviews(content: bytes) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        (folder / "reviews.csv").write_bytes(content)
        return folder

    return build


def listops(rows: bytes) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        for name in ("train", "val", "test"):
            (folder / f"basic_{name}.tsv").write_bytes(b"Source\tTarget\n" + rows)
        return folder

    return build


def release(rows: bytes) -> Callable[[Path], Path]:
    return lambda folder: write_release(folder, [rows])


def pairs(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        change(write_parquet(folder / "acl"))
        return folder

    return build


def replace_pairs(folder: Path, **columns: object) -> None:
    table = pd.DataFrame(PAIRS, columns=["label", "id1", "id2"]).assign(**columns)  # type: ignore[arg-type]
    table.to_parquet(folder / "pairs_train.parquet")


def replace_documents(folder: Path, ids: list[object], texts: list[object]) -> None:
    pd.DataFrame({"id": ids, "text": texts}).to_parquet(folder / "documents.parquet")


def acl_tree_without_reviews(folder: Path) -> Path:
    for split in ("train", "test"):
        for kind in ("pos", "neg"):
            (folder / "aclImdb" / split / kind).mkdir(parents=True)
    return folder


FIVE = list("abcde")
CASES: list[Case] = [
    ("text", "a missing column", parquet_reviews(text=FIVE), r"train\.parquet has no column 'label'; expected"),
    ("text", "a wrong label", parquet_reviews(text=FIVE, label=[0, 1, 2, 0, 1]), r"train\.parquet: row 3 has label 2; "),
    ("text", "a label that is text", parquet_reviews(text=FIVE, label=FIVE), r"train\.parquet: .*label 0 or 1"),
    ("text", "a text that is missing", parquet_reviews(text=["a", None], label=[0, 1]), r"row 2 has no text"),
    ("text", "an empty text", parquet_reviews(text=["a", "", "c"], label=[0, 1, 0]), r"row 2 has an empty text; remove it"),
    ("text", "an empty split", parquet_reviews(text=[], label=[]), r"the t\w+ split from local .* is empty; give"),
    ("text", "too few examples", parquet_reviews(text=["a", "b"], label=[0, 1]), r"2 training examples are too few"),
    ("text", "no parquet inside", lambda f: _nonsense(f), r"train\.parquet is not a whole parquet file .*; fetch it again"),
    ("text", "a damaged parquet file", lambda f: _damaged(parquet_reviews(text=["ab"] * 99, label=[0] * 99)(f)), r"whole parquet"),
    ("text", "labels that are lists", parquet_reviews(text=FIVE, label=[[1]] * 5), r"train\.parquet: .*label 0 or 1"),
    ("text", "a tree without reviews", acl_tree_without_reviews, r"neg holds no \.txt reviews; unpack"),
    ("text", "an empty folder", lambda f: f, r"no reviews in .*: expected imdb"),
    ("text", "no such folder", lambda f: f / "gone", r"gone' is neither auto, hub, embedded nor an existing folder"),
    ("text", "CSV: a missing column", csv_reviews(b"review,mood\na,b\n"), r"reviews\.csv has no column 'sentiment'"),
    ("text", "CSV: a wrong label", csv_reviews(b"review,sentiment\na,so-so\n"), r"row 2 has sentiment 'so-so'; expected"),
    ("text", "CSV: invalid UTF-8", csv_reviews(b"review,sentiment\n\xff,positive\n"), r"not a readable UTF-8 CSV"),
    ("text", "CSV: a row too long", csv_reviews(b"review,sentiment\na,positive,b\n,,,\n"), r"reviews\.csv.*(fields|row)"),
    ("text", "CSV: an empty file", csv_reviews(b""), r"reviews\.csv is not a readable UTF-8 CSV"),
    ("listops", "half a row", listops(b"[MAX 1 2 ]\n"), r"basic_train\.tsv: row 2 has no tab .* cut short"),
    ("listops", "unbalanced brackets", listops(b"[MAX 1 [MIN 2 3 ]\t1\n"), r"row 2 leaves 1 brackets open"),
    ("listops", "too many closing brackets", listops(b"[MAX 1 2 ] ]\t2\n"), r"row 2 closes more brackets than it opens"),
    ("listops", "a digit before an expression", listops(b"3 [MAX 1 2 ]\t2\n"), r"row 2 has several expressions"),
    ("listops", "two expressions", listops(b"[MAX 1 2 ] [MIN 1 2 ]\t2\n"), r"row 2 has several expressions"),
    ("listops", "an unknown operator", listops(b"[SUM 1 2 ]\t3\n"), r"row 2 has '\[SUM'; expected digits 0 to 9, \[MIN"),
    ("listops", "a number above 9", listops(b"[MAX 1 2 ]\t2\n[MAX 1 12 ]\t2\n"), r"row 3 has '12'; expected digits"),
    ("listops", "a label that is no digit", listops(b"[MAX 1 2 ]\t11\n"), r"row 2 has Target '11'; expected one digit"),
    ("listops", "NUL bytes", listops(b"[MAX 1 \x00 2 ]\t2\n"), r"row 2 has '\\x00'; expected digits"),
    ("listops", "invalid UTF-8", listops(b"[MAX 1 \xff ]\t2\n"), r"row 2 has '.'; expected digits"),
    ("listops", "an operator without arguments", listops(b"[MAX ]\t2\n"), r"row 2 has \[MAX without arguments"),
    ("listops", "no expression", listops(b"( )\t2\n"), r"row 2 has no expression; remove it"),
    ("listops", "a header alone", listops(b""), r"basic_train\.tsv holds no expressions; fetch or export it again"),
    ("retrieval", "half a row", release(b"1.0\ta\tb\ttext\n"), r"train\.tsv: row 1 has 4 columns; expected label, id1"),
    ("retrieval", "a wrong label", release(b"2.0\ta\tb\tx\ty\n"), r"train\.tsv: row 1 has label '2\.0'; expected 0\.0 or"),
    ("retrieval", "an empty text", release(b"1.0\ta\tb\tx\t\n"), r"row 1 has an empty text for document 'b'; remove it"),
    ("retrieval", "an empty file", lambda f: _empty_release(f), r"new_aan_pairs\.train\.tsv is empty; fetch it again"),
    ("retrieval", "an id without a document", pairs(lambda f: replace_pairs(f, id2="P9")), r"row 1 names document 'P9'"),
    ("retrieval", "a label beyond 1", pairs(lambda f: replace_pairs(f, label=7)), r"row 1 has label 7; expected 0 or 1"),
    ("retrieval", "no pairs", pairs(lambda f: pd.DataFrame(PAIRS[:0], columns=["label", "id1", "id2"]).to_parquet(
        f / "pairs_train.parquet")), r"pairs_train\.parquet holds no pairs"),
    ("retrieval", "a document twice", pairs(lambda f: replace_documents(f, ["P1", "P1"], ["x", "y"])), r"repeats the id"),
    ("retrieval", "a document without text", pairs(lambda f: replace_documents(f, [*TEXTS], ["x", None, "z"])), r"row 2 has"),
    ("retrieval", "a missing column", pairs(lambda f: (f / "documents.parquet").write_bytes(
        (f / "pairs_train.parquet").read_bytes())), r"documents\.parquet has no column 'id'"),
]  # fmt: skip


def _nonsense(folder: Path) -> Path:
    for split in ("train", "test"):
        (folder / f"{split}.parquet").write_bytes(b"nonsense")
    return folder


def _damaged(folder: Path) -> Path:
    """The first letters of its texts are no UTF-8."""
    for file in folder.rglob("*.parquet"):
        content = bytearray(file.read_bytes())
        content[content.index(b"ab")] = 0xFF
        file.write_bytes(content)
    return folder


def _empty_release(folder: Path) -> Path:
    for name in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(b"")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))


def stored() -> list[str]:
    return [p.name for p in cache_dir().glob("*") if p.suffix != ".lock"] if cache_dir().is_dir() else []


@pytest.mark.parametrize(("task", "what", "build", "message"), CASES, ids=[f"{t}: {w}" for t, w, *_ in CASES])
def test_bad_data(task: str, what: str, build: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(DataError, match=message) as caught:
        load_task(task, data=build(folder))
    assert "\n" not in str(caught.value)
    # A split that is empty or too small is a sound file all the same; nothing else is kept.
    assert stored() == [] or "empty" in what or "few" in what


def test_a_row_too_long_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.retrieval.MAX_ROW_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"train\.tsv: row 1 is longer than 1 MiB; it is no pairs file"):
        load_task("retrieval", data=write_release(tmp_path / "x", [b"1.0\ta\tb\t" + b"x" * (1 << 20) + b"\ty\n"]))


def test_a_file_without_permission(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected, because permissions do not bind root."""
    import pyarrow.parquet as pq

    def refuse(file: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(pq, "read_table", refuse)
    with pytest.raises(DataError, match=r"cannot read .*train\.parquet: Permission denied"):
        load_task("text", data=reviews)


def test_a_disk_without_room(reviews: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.numpy

    def full(arrays: object, path: Path, **_: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    with pytest.raises(DataError, match=r"cannot write the cache .*: No space left on device; set LRA_BENCH_CACHE"):
        load_task("text", data=reviews)
    assert stored() == []


def test_killed_while_preparing_leaves_nothing_half_written(reviews: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys
import safetensors.numpy
def dies(arrays, path, **_):
    open(path, "wb").write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
safetensors.numpy.save_file = dies
from tasks import load_task
load_task("text", data=sys.argv[1])
"""
    done = subprocess.run([sys.executable, "-c", code, str(reviews)], check=False, capture_output=True)
    assert done.returncode == -9
    assert not list(cache_dir().glob("*.safetensors"))
    assert len(load_task("text", data=reviews).test) == 60


@pytest.mark.parametrize("task", ["text", "listops", "retrieval"])
def test_from_the_command_line(task: str, tmp_path: Path) -> None:
    build = next(case[2] for case in CASES if case[0] == task)
    folder = tmp_path / "data"
    folder.mkdir()
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "lra_bench",
        "bench",
        "--task",
        task,
        "--data",
        str(build(folder)),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert [p for p in out.rglob("*") if p.is_file()] == []
