"""Byte-level sentiment of film reviews: IMDb (Maas et al. 2011) as in the Long Range Arena (Tay et al. 2021)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, Dataset, Split, stratified
from .files import folder_name
from .packed import PackedSequences, pack_bytes, unpack_bytes
from .parquet import read_columns, text_column, write_parquet
from .registry import HubSource, TaskLoader, register_task
from .synthetic_reviews import generate_reviews

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "test")
LABELS = {"negative": 0, "positive": 1, "neg": 0, "pos": 1, "0": 0, "1": 1}
EMBEDDED = "reviews-synthetic"
EMBEDDED_SIZES = {"train": 25_000, "test": 5_000}


@register_task("text")
class TextTask(TaskLoader):
    """Reads the parquet layout of the hub, an unpacked aclImdb tree, or a CSV with review and sentiment columns.

    Parquet files are the data set that their folder is named after; the hub's folder of IMDb is `plain_text`.
    """

    def find(self, folder: Path) -> list[Path]:
        for base in (folder, folder / "imdb", folder / "plain_text", folder / EMBEDDED):
            files = [sorted(base.glob(f"{split}*.parquet")) for split in SPLITS]
            if all(files):
                return [file for split_files in files for file in split_files]
        for base in (folder, folder / "aclImdb"):
            if (base / "train" / "pos").is_dir():
                return [base / split / kind for split in SPLITS for kind in ("neg", "pos")]
        tables = [folder] if folder.is_file() else sorted(folder.glob("*.csv"))
        if len(tables) == 1 and tables[0].suffix == ".csv":
            return tables
        raise DataError(
            f"no reviews in {folder}: expected imdb/{{train,test}}.parquet, an aclImdb tree, or one CSV file"
            " with the columns review and sentiment"
        )

    def read(self, files: list[Path]) -> Dataset:
        if files[0].suffix == ".csv":
            return _read_csv(files[0])
        if files[0].is_dir():
            return Dataset("imdb", {split: _read_tree(files[0].parent.parent / split) for split in SPLITS})
        # Other reviews, or exported synthetic ones, must not pass for IMDb's.
        folder = folder_name(files[0])
        name = "imdb" if folder == "plain_text" else folder
        return Dataset(name, {split: _read_parquet([f for f in files if f.name.startswith(split)]) for split in SPLITS})

    def download(self, hub: HubSource) -> Dataset:
        import datasets

        sets = datasets.load_dataset(hub.repo, revision=hub.revision)
        columns = {split: sets[split].with_format("arrow").data for split in SPLITS}
        where = f"hub {hub.repo}"
        return Dataset("imdb", {s: _split(t.column("text"), t.column("label"), where) for s, t in columns.items()})

    def generate(self) -> Dataset:
        splits = {}
        for seed, (split, size) in enumerate(EMBEDDED_SIZES.items()):
            texts, labels = generate_reviews(size, seed)
            splits[split] = Split((pack_bytes(texts),), np.array(labels, dtype=np.int64))
        return Dataset(EMBEDDED, splits)

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        files = []
        for name, split in dataset.splits.items():
            columns = {"text": text_column(unpack_bytes(split.inputs[0])), "label": split.labels}
            files.append(write_parquet(folder / dataset.name / f"{name}.parquet", columns))
        return files

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        """A linear classifier of how often each byte occurs in a review, by least squares: no order, no words."""
        of_train, of_test = (_frequencies(split.inputs[0], self.spec.vocab_size) for split in (train, test))
        # Frequencies add up to 1, so that a constant is among what they can say.
        weights, *_ = np.linalg.lstsq(of_train, 2.0 * train.labels - 1.0, rcond=None)
        return {"byte frequencies": 100 * float(((of_test @ weights > 0) == test.labels).mean())}


def _frequencies(reviews: PackedSequences, vocab_size: int) -> NDArray[np.float64]:
    """Shares of the tokens in each review, `[num_reviews, vocab_size]`."""
    counts = [np.bincount(reviews[i], minlength=vocab_size) for i in range(len(reviews))]
    return np.stack(counts) / np.maximum(reviews.lengths, 1)[:, None]


def _split(text: pa.ChunkedArray, label: pa.ChunkedArray, where: str) -> Split:
    """Pack Arrow columns; the strings' own buffers become the tokens, without an object per review."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_bytes = pa.types.is_binary(text.type) or pa.types.is_large_binary(text.type)
    try:
        strings = text.cast(pa.large_binary() if of_bytes else pa.large_string()).combine_chunks()
        labels = label.cast(pa.int64())
    except pa.ArrowException as error:
        raise DataError(f"{where}: text must be a string and label 0 or 1 ({str(error).splitlines()[0]})") from None
    if isinstance(strings, pa.ChunkedArray):
        strings = pa.concat_arrays(strings.chunks) if strings.num_chunks else pa.array([], strings.type)
    if strings.null_count or labels.null_count:
        row = next(i for i, pair in enumerate(zip(strings, labels, strict=True)) if None in (p.as_py() for p in pair))
        raise DataError(f"{where}: row {row + 1} has no text or no label; fill it in or remove it")
    values = labels.to_numpy().copy()  # Arrow's own memory is read-only
    if wrong := np.flatnonzero((values != 0) & (values != 1)).tolist():
        raise DataError(f"{where}: row {wrong[0] + 1} has label {values[wrong[0]]}; expected 0 or 1")
    if empty := np.flatnonzero(pc.binary_length(strings).to_numpy() == 0).tolist():
        raise DataError(f"{where}: row {empty[0] + 1} has an empty text; remove it")
    _, offset_buffer, data_buffer = strings.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.zeros(0, np.uint8)
    tokens = data[offsets[0] : offsets[-1]].astype(np.int16) + 1
    return Split((PackedSequences.from_offsets(tokens, offsets - offsets[0]),), values)


def _read_parquet(files: list[Path]) -> Split:
    import pyarrow as pa

    whole = pa.concat_tables([read_columns(file, ["text", "label"]) for file in files])
    return _split(whole.column("text"), whole.column("label"), str(files[0]))


def _read_tree(folder: Path) -> Split:
    texts: list[bytes] = []
    labels: list[int] = []
    for label, kind in enumerate(("neg", "pos")):
        files = sorted((folder / kind).glob("*.txt"))
        if not files:
            raise DataError(f"{folder / kind} holds no .txt reviews; unpack aclImdb_v1.tar.gz again")
        texts += [file.read_bytes() for file in files]
        if empty := [file for file in files if not file.stat().st_size]:
            raise DataError(f"{empty[0]} is empty; unpack aclImdb_v1.tar.gz again")
        labels += [label] * len(files)
    return Split((pack_bytes(texts),), np.array(labels, dtype=np.int64))


def _read_csv(file: Path) -> Dataset:
    """One table without official splits: a seeded, stratified half becomes test, under a name of its own."""
    import pandas as pd
    import pyarrow as pa

    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not a readable UTF-8 CSV: {str(error).splitlines()[0]}") from None
    if missing := {"review", "sentiment"} - set(table.columns):
        raise DataError(f"{file} has no column {missing.pop()!r}; expected review and sentiment")
    labels = table["sentiment"].str.strip().str.lower().map(LABELS)
    if labels.isna().any():
        row = int(labels.isna().to_numpy().argmax())
        raise DataError(
            f"{file}: row {row + 2} has sentiment {table['sentiment'][row]!r}; expected positive or negative"
        )
    text = pa.chunked_array([pa.array(table["review"].tolist(), pa.large_string())])
    whole = _split(text, pa.chunked_array([pa.array(labels.astype(np.int64).to_numpy())]), str(file))
    test = stratified(whole.labels, len(whole) // 2, seed=0)
    train = np.setdiff1d(np.arange(len(whole)), test)
    return Dataset(f"{file.stem}-own-split", {"train": whole.select(train), "test": whole.select(test)})
