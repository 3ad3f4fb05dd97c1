"""Language modelling: bytes of a text (`lm`), and words of WikiText-103 as in the RFA paper (`wikitext103`)."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, Dataset, Split
from .files import folder_name
from .packed import PackedSequences, pack_bytes, unpack_bytes
from .parquet import read_columns, text_column, write_parquet
from .registry import HubSource, TaskLoader, register_task
from .synthetic_reviews import generate_reviews

SPLITS = ("train", "validation", "test")
SHORT = {"train": "train", "validation": "valid", "test": "test"}
EMBEDDED_REVIEWS = {"train": 600, "validation": 30, "test": 30}
END_OF_LINE = "<eos>"


class LanguageModelling(TaskLoader):
    """A text per split, cut into segments of the context's length; every token but the first is predicted once.

    Reads NAME_{train,validation,test}.parquet with a column `text` (one line a row), the unpacked WikiText release
    (wiki.{train,valid,test}.tokens), or one .txt file, whose last two twentieths become validation and test. Where a
    folder holds several texts the first by name is taken; naming one of its files chooses.
    """

    def find(self, folder: Path) -> list[Path]:
        if folder.suffix == ".txt":
            return [folder]
        chosen = re.sub(r"(train|validation|test)\.parquet$", "", folder.name) if folder.is_file() else ""
        for base in (folder, folder / "lm") if folder.is_dir() else (folder.parent,):
            release = [base / f"wiki.{SHORT[split]}.tokens" for split in SPLITS]
            if all(file.is_file() for file in release):
                return release
            for first in sorted(base.glob(f"{chosen}*train.parquet")):
                prefix = first.name[: -len("train.parquet")]
                files = [base / f"{prefix}{split}.parquet" for split in SPLITS]
                if all(file.is_file() for file in files) and chosen in ("", prefix):
                    return files
        raise DataError(
            f"no text in {folder}: expected NAME_{{train,validation,test}}.parquet with a column text,"
            " or wiki.{train,valid,test}.tokens; a .txt file is named itself, as in --data dir/my.txt"
        )

    def read(self, files: list[Path]) -> Dataset:
        if files[0].suffix == ".txt":
            text = files[0].read_bytes()
            bounds = [0, len(text) * 9 // 10, len(text) * 19 // 20, len(text)]
            parts = {split: text[bounds[i] : bounds[i + 1]] for i, split in enumerate(SPLITS)}
            return self.encode(f"{files[0].stem}-own-split", parts)
        if files[0].suffix == ".tokens":
            return self.encode("wikitext", {split: f.read_bytes() for split, f in zip(SPLITS, files, strict=True)})
        name = files[0].name[: -len("train.parquet")].rstrip("_-.") or folder_name(files[0])
        return self.encode(name, {split: _read_lines(file) for split, file in zip(SPLITS, files, strict=True)})

    def download(self, hub: HubSource) -> Dataset:
        import datasets

        sets = datasets.load_dataset(hub.repo, hub.subset, revision=hub.revision)
        texts = {split: _join(sets[split]["text"]) for split in SPLITS}
        return self.encode(hub.subset or hub.repo.rpartition("/")[2], texts)

    def generate(self) -> Dataset:
        texts = {}
        for seed, (split, count) in enumerate(EMBEDDED_REVIEWS.items()):
            texts[split] = b"\n".join(generate_reviews(count, seed)[0])
        return self.encode("prose-synthetic", texts)

    def encode(self, name: str, texts: dict[str, bytes]) -> Dataset:
        """One sequence of byte tokens per split."""
        return Dataset(name, {split: _one(pack_bytes([text])) for split, text in texts.items()})

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        files = []
        for split, examples in dataset.splits.items():
            (text,) = unpack_bytes(examples.inputs[0])
            path = folder / "lm" / f"{dataset.name}_{split}.parquet"
            files.append(write_parquet(path, {"text": text_column(text.removesuffix(b"\n").split(b"\n"))}))
        return files

    def prepare(self, name: str, split: Split, max_len: int) -> Split:
        """Segments of max_len + 1 tokens, each beginning with the one before it ended with; the last may be shorter."""
        text = split.inputs[0]
        length = int(text.lengths.sum())
        if length < 2:
            raise DataError(f"the {name} text has {length} tokens; give one with at least 2")
        starts = np.arange(0, length - 1, max_len)
        lengths = np.minimum(length - starts, max_len + 1)
        return Split((PackedSequences(text.tokens, starts, lengths),), np.zeros(len(starts), np.int64))

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        counts = np.bincount(train.inputs[0].tokens, minlength=self.spec.vocab_size) + 1.0
        targets = _targets(test.inputs[0])
        nats = float(-np.log(counts / counts.sum())[targets].mean())
        unit = "word" if self.spec.metric == "perplexity" else "byte"
        found = {f"{unit} frequencies": score(nats, self.spec.metric)}
        if unit == "byte":
            # How often each byte follows each other, with one more of every kind.
            size, text = self.spec.vocab_size, train.inputs[0].tokens.astype(np.int64)
            pairs = np.bincount(text[:-1] * size + text[1:], minlength=size**2).reshape(size, size) + 1.0
            logs = np.log(pairs / pairs.sum(axis=1, keepdims=True))
            before = np.concatenate([s[:-1] for s in map(test.inputs[0].__getitem__, range(len(test)))])
            found["frequencies after the byte before"] = score(float(-logs[before, targets].mean()), self.spec.metric)
        return found


@register_task("lm")
class ByteLanguageModelling(LanguageModelling):
    """Bytes, in bits per byte."""


@register_task("wikitext103")
class WordLanguageModelling(LanguageModelling):
    """Words between blanks, a line's end among them, numbered by their frequency in train; in perplexity."""

    def encode(self, name: str, texts: dict[str, bytes]) -> Dataset:
        counts = Counter(_words(texts["train"]))
        # The commonest first, as adaptive softmax wants it; equal ones in alphabetical order.
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: self.spec.vocab_size - 1]
        number = {word: i for i, word in enumerate(kept, 1)}
        unknown = number.get("<unk>", len(number))
        splits = {}
        for split, text in texts.items():
            tokens = np.fromiter((number.get(word, unknown) for word in _words(text)), np.int32)
            splits[split] = _one(PackedSequences.from_offsets(tokens, np.array([0, len(tokens)])))
        return Dataset(f"{name}-words", splits)

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        raise DataError("wikitext103 is stored as numbers of words; export lm instead, or fetch the release")


def score(nats: float, metric: str) -> float:
    """Mean negative log-likelihood of a token as bits per byte or as perplexity, which may be too large for a float."""
    if metric != "perplexity":
        return nats / math.log(2)
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def _targets(segments: PackedSequences) -> NDArray[np.integer]:
    return np.concatenate([segments[i][1:] for i in range(len(segments))])


def _one(text: PackedSequences) -> Split:
    return Split((text,), np.zeros(1, np.int64))


def _words(text: bytes) -> Iterator[str]:
    """One by one: a hundred million words fit into memory as numbers alone."""
    try:
        for line in io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"):
            yield from line.split()
            yield END_OF_LINE
    except UnicodeDecodeError as error:
        raise DataError(f"the text is not UTF-8 ({error.reason}); convert it") from None


def _read_lines(file: Path) -> bytes:
    import pyarrow as pa

    column = read_columns(file, ["text"]).column("text")
    of_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(known(column.type) for known in of_text):
        raise DataError(f"{file}: text must be a string, not {column.type}")
    if column.null_count:
        raise DataError(f"{file}: a row has no text; fill it in or remove it")
    return _join(column.to_pylist())


def _join(lines: Iterable[str | bytes]) -> bytes:
    """One line a row. Some writers keep a line's break in its row, the hub's only that of lines that are not empty."""
    encoded = (line if isinstance(line, bytes) else line.encode() for line in lines)
    return b"".join(line if line.endswith(b"\n") else line + b"\n" for line in encoded)
