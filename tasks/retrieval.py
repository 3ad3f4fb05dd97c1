"""Does one document cite another, byte-level: the ACL Anthology Network as Tay et al. (2021) have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .dataset import DataError, Dataset, Split
from .files import folder_name
from .packed import PackedSequences, unpack_bytes
from .parquet import read_columns, text_column, write_parquet
from .registry import HubSource, TaskLoader, register_task
from .synthetic_citations import NUM_PAPERS, generate_pairs, generate_papers

SPLITS = ("train", "validation", "test")
RELEASE = {"train": "train", "validation": "eval", "test": "test"}
MAX_BYTES = 10_000  # the release's own cut of every text
EMBEDDED = "citations-synthetic"
BLOCK_BYTES = 1 << 24
RUN = 4  # bytes; of the runs that two documents share, see `_similarity`
MAX_ROW_BYTES = 1 << 26


@register_task("retrieval")
class RetrievalTask(TaskLoader):
    """Reads documents and pairs in parquet, or the release's five-column TSV, of which each document is kept once."""

    def find(self, folder: Path) -> list[Path]:
        for base in (folder, *(folder / name for name in ("acl", "peps", "aan", "retrieval", EMBEDDED))):
            files = [base / "documents.parquet", *(base / f"pairs_{split}.parquet" for split in SPLITS)]
            if all(file.is_file() for file in files):
                return files
        for base in (folder, folder / "aan", folder / "tsv_data", folder / "lra_release" / "tsv_data"):
            files = [base / f"new_aan_pairs.{name}.tsv" for name in RELEASE.values()]
            if all(file.is_file() for file in files):
                return files
        raise DataError(
            f"no document pairs in {folder}: expected documents.parquet with pairs_{{train,validation,test}}.parquet,"
            " perhaps in acl/, or new_aan_pairs.{train,eval,test}.tsv"
        )

    def read(self, files: list[Path]) -> Dataset:
        if files[0].suffix == ".parquet":
            documents, index = _read_documents(files[0])
            pairs = {s: _read_pairs(file, index) for s, file in zip(SPLITS, files[1:], strict=True)}
            return _dataset(folder_name(files[0]), documents, pairs)
        return read_release(files)

    def download(self, hub: HubSource) -> Dataset:
        from huggingface_hub import hf_hub_download

        names = [f"data/aan/new_aan_pairs.{name}.tsv" for name in RELEASE.values()]
        files = [hf_hub_download(hub.repo, name, revision=hub.revision, repo_type="dataset") for name in names]
        return read_release([Path(file) for file in files])

    def generate(self) -> Dataset:
        texts, cites, topics = generate_papers()
        store = _Documents()
        for text in texts:
            store.add(text)
        # Split by citing paper, so that no paper's references are seen in training and asked for in test.
        bounds = {"train": (0, 1_200), "validation": (1_200, 1_300), "test": (1_300, NUM_PAPERS)}
        pairs = {}
        for seed, (split, (low, high)) in enumerate(bounds.items()):
            first, second, labels = generate_pairs(cites, topics, list(range(low, high)), seed)
            pairs[split] = np.array([first, second, labels], np.int64).T
        return _dataset(EMBEDDED, store.packed(), pairs)

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        # A document is known by where it starts in the one token array that all pairs share.
        inputs = [sequences for split in dataset.splits.values() for sequences in split.inputs]
        starts, first = np.unique(np.concatenate([s.starts for s in inputs]), return_index=True)
        lengths = np.concatenate([s.lengths for s in inputs])[first]
        names = {start: f"D{number:06d}" for number, start in enumerate(starts.tolist())}
        texts = text_column(unpack_bytes(PackedSequences(inputs[0].tokens, starts, lengths)))
        base = folder / dataset.name
        files = [write_parquet(base / "documents.parquet", {"id": list(names.values()), "text": texts})]
        for name, split in dataset.splits.items():
            first_ids, second_ids = ([names[start] for start in s.starts.tolist()] for s in split.inputs)
            columns = {"label": split.labels, "id1": first_ids, "id2": second_ids}
            files.append(write_parquet(base / f"pairs_{name}.parquet", columns))
        return files

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        """Whether two documents share enough runs of four bytes; how many is enough, training tells."""
        train = train.sample(5_000)
        values, of_pairs = np.unique(_similarity(train), return_inverse=True)
        # Asking for more than a value loses the citations that have it and wins the other pairs.
        right = np.cumsum([0, *np.bincount(of_pairs, np.where(train.labels, -1, 1))])
        least = np.append(values, np.inf)[right.argmax()]
        guesses = _similarity(test) >= least
        return {f"shared runs of {RUN} bytes": 100 * float((guesses == test.labels).mean())}


class _Documents:
    """Documents end to end, each cut to MAX_BYTES."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._ends = [0]

    def add(self, text: bytes) -> int:
        """Store a document and return its number."""
        self._bytes += text[:MAX_BYTES]
        self._ends.append(len(self._bytes))
        return len(self._ends) - 2

    def packed(self) -> PackedSequences:
        tokens = np.frombuffer(self._bytes, np.uint8).astype(np.int16) + 1
        return PackedSequences.from_offsets(tokens, np.array(self._ends, np.int64))


def _dataset(name: str, documents: PackedSequences, pairs: dict[str, NDArray[np.int64]]) -> Dataset:
    """pairs: per split `[num_pairs, 3]` of first document, second document, label."""
    splits = {
        split: Split((documents.select(rows[:, 0]), documents.select(rows[:, 1])), rows[:, 2].copy())
        for split, rows in pairs.items()
    }
    return Dataset(name, splits)


def read_release(files: Sequence[Path]) -> Dataset:
    """The release's files for train, eval and test, read as a stream: memory holds each document once, never a file."""
    numbers: dict[bytes, int] = {}
    store = _Documents()
    pairs = {}
    for split, file in zip(SPLITS, files, strict=True):
        rows = [_release_row(file, number, line, numbers, store) for number, line in enumerate(_lines(file), 1)]
        if not rows:
            raise DataError(f"{file} is empty; fetch it again")
        pairs[split] = np.array(rows, np.int64)
    return _dataset("aan", store.packed(), pairs)


def _release_row(
    file: Path, number: int, line: bytes, numbers: dict[bytes, int], store: _Documents
) -> tuple[int, int, int]:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != 5:
        raise DataError(
            f"{file}: row {number} has {len(columns)} columns; expected label, id1, id2, text1, text2; fetch it again"
        )
    label, *ids_and_texts = columns
    if label not in (b"0.0", b"1.0", b"0", b"1"):
        raise DataError(
            f"{file}: row {number} has label {label[:20].decode('utf-8', 'replace')!r}; expected 0.0 or 1.0"
        )
    documents = []
    for key, text in zip(ids_and_texts[:2], ids_and_texts[2:], strict=True):
        if not text:
            raise DataError(
                f"{file}: row {number} has an empty text for document {key.decode('utf-8', 'replace')!r}; remove it"
            )
        if key not in numbers:
            numbers[key] = store.add(text)
        documents.append(numbers[key])
    return documents[0], documents[1], int(label[:1])


def _lines(file: Path) -> Iterator[bytes]:
    """Lines of a file of any size. Raises DataError for a line over MAX_ROW_BYTES, which no row of the release has."""
    with file.open("rb", buffering=BLOCK_BYTES) as stream:
        number = 1
        while line := stream.readline(MAX_ROW_BYTES):
            if len(line) == MAX_ROW_BYTES:
                raise DataError(f"{file}: row {number} is longer than {MAX_ROW_BYTES >> 20} MiB; it is no pairs file")
            yield line
            number += 1


def _read_documents(file: Path) -> tuple[PackedSequences, dict[str, int]]:
    table = read_columns(file, ["id", "text"]).to_pydict()
    store = _Documents()
    index: dict[str, int] = {}
    for row, (key, text) in enumerate(zip(table["id"], table["text"], strict=True), 1):
        if not key or not text:
            raise DataError(f"{file}: row {row} has no {'text' if key else 'id'}; fill it in or remove it")
        if str(key) in index:
            raise DataError(f"{file}: row {row} repeats the id {key!r}; keep one document of that name")
        index[str(key)] = store.add(text if isinstance(text, bytes) else str(text).encode())
    return store.packed(), index


def _read_pairs(file: Path, index: dict[str, int]) -> NDArray[np.int64]:
    table = read_columns(file, ["label", "id1", "id2"]).to_pydict()
    rows = []
    for row, (label, *ids) in enumerate(zip(table["label"], table["id1"], table["id2"], strict=True), 1):
        if label not in (0, 1):
            raise DataError(f"{file}: row {row} has label {label!r}; expected 0 or 1")
        for key in ids:
            if str(key) not in index:
                raise DataError(f"{file}: row {row} names document {key!r}, which documents.parquet does not hold")
        rows.append((index[str(ids[0])], index[str(ids[1])], int(label)))
    if not rows:
        raise DataError(f"{file} holds no pairs; give it some")
    return np.array(rows, np.int64)


def _similarity(pairs: Split) -> NDArray[np.float64]:
    """Of each pair the cosine of how often every run of bytes occurs in the one document and the other."""
    return np.array([_cosine(*(_runs(documents[i]) for documents in pairs.inputs)) for i in range(len(pairs))])


def _runs(tokens: NDArray[np.integer]) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """The runs of RUN bytes in a document, sorted, and how often each occurs, scaled to a vector of unit length."""
    text = (tokens - 1).astype(np.uint8)
    numbers = sum(text[i : max(0, len(text) - RUN + 1 + i)].astype(np.uint32) << np.uint32(8 * i) for i in range(RUN))
    runs, counts = np.unique(numbers, return_counts=True)
    return runs, counts / np.linalg.norm(counts)


def _cosine(
    first: tuple[NDArray[np.uint32], NDArray[np.float64]], second: tuple[NDArray[np.uint32], NDArray[np.float64]]
) -> float:
    (runs, counts), (others, their_counts) = first, second
    _, here, there = np.intersect1d(runs, others, assume_unique=True, return_indices=True)
    return float(counts[here] @ their_counts[there])
