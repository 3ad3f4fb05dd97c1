"""What a loader yields (`Dataset`) and what a task hands to the harness (`Task`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .packed import PackedSequences

Kind = Literal["classification", "language modelling", "translation"]
Metric = Literal["accuracy", "bits per byte", "perplexity", "BLEU"]


class DataError(ValueError):
    """Data that is missing, damaged or not what was expected; the message names it and the remedy."""


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split. inputs: one or two PackedSequences; labels: `[num_examples]` int64.

    Raises DataError where there are not as many sequences as labels.
    """

    inputs: tuple[PackedSequences, ...]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        for sequences in self.inputs:
            if len(sequences) != len(self.labels):
                raise DataError(
                    f"a split has {len(sequences)} sequences and {len(self.labels)} labels; expected as many"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def total_lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, over all its inputs, `[num_examples]`."""
        return np.sum([sequences.lengths for sequences in self.inputs], axis=0, dtype=np.int64)

    def select(self, indices: NDArray[np.integer]) -> Split:
        """The examples at `indices`, in that order."""
        return Split(tuple(sequences.select(indices) for sequences in self.inputs), self.labels[indices])

    def truncate(self, max_len: int) -> Split:
        """Every sequence cut to its first `max_len` tokens."""
        return Split(tuple(sequences.truncate(max_len) for sequences in self.inputs), self.labels)

    def sample(self, size: int | None, seed: int = 0) -> Split:
        """A stratified, seeded sample of `size` examples; all of them when `size` is None or not smaller."""
        if size is None or size >= len(self):
            return self
        return self.select(stratified(self.labels, size, seed))


def stratified(labels: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Sorted indices of a seeded sample of `size` examples that keeps the classes' shares (largest remainders)."""
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    share = counts * size / len(labels)
    quota = np.floor(share).astype(np.int64)
    quota[np.argsort(quota - share, kind="stable")[: size - quota.sum()]] += 1
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:n] for c, n in zip(classes, quota, strict=True)]
    return np.sort(np.concatenate(chosen))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loader's result, whole: named splits ("train", "test", perhaps "validation"), untruncated.

    name: what the leaderboard calls it; synthetic and real data never carry the same name; tokenizer: as the
    tokenizers library writes it (JSON), where tokens are not bytes.
    """

    name: str
    splits: dict[str, Split]
    tokenizer: str = ""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Flat view for storing and hashing: `tokens.0`, `train.labels`, `train.0.starts`, …

        Token arrays that several inputs share, as all pairs of documents do, appear once; `train.0.store` is the
        number of the one that an input looks into.
        """
        flat: dict[str, NDArray[np.generic]] = {}
        stores: dict[int, int] = {}
        if self.tokenizer:
            flat["tokenizer"] = np.frombuffer(self.tokenizer.encode(), np.uint8)
        for name, split in sorted(self.splits.items()):
            flat[f"{name}.labels"] = split.labels
            for i, sequences in enumerate(split.inputs):
                store = stores.setdefault(id(sequences.tokens), len(stores))
                flat[f"tokens.{store}"] = sequences.tokens
                flat[f"{name}.{i}.store"] = np.array([store])
                flat[f"{name}.{i}.starts"] = sequences.starts
                flat[f"{name}.{i}.lengths"] = sequences.lengths
        return flat

    @classmethod
    def from_arrays(cls, name: str, arrays: dict[str, NDArray[np.generic]]) -> Dataset:
        """Inverse of `arrays`."""
        splits = {}
        for key in arrays:
            split, _, rest = key.partition(".")
            if rest != "labels":
                continue
            inputs: list[PackedSequences] = []
            while (prefix := f"{split}.{len(inputs)}") + ".store" in arrays:
                tokens = arrays[f"tokens.{int(arrays[prefix + '.store'].item())}"]
                inputs.append(PackedSequences(tokens, arrays[prefix + ".starts"], arrays[prefix + ".lengths"]))  # type: ignore[arg-type]
            splits[split] = Split(tuple(inputs), arrays[key])  # type: ignore[arg-type]
        tokenizer = arrays["tokenizer"].tobytes().decode() if "tokenizer" in arrays else ""
        return cls(name, splits, tokenizer)

    def fingerprint(self) -> str:
        """SHA-256 over the packed arrays, in hexadecimal."""
        digest = hashlib.sha256()
        for key, array in sorted(self.arrays().items()):
            digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Task:
    """A task with its data, ready for the harness; sequences are cut to `max_len`.

    dataset: name of the data set; data: "hub", "embedded" or the folder it came from, what "auto" stood for;
    source: the same in plain words; fingerprint: of the whole data set
    before validation was split off; vocab_size: number of token ids, padding (0) included; tokenizer: the data set's.
    """

    name: str
    version: int
    kind: Kind
    metric: Metric
    dataset: str
    data: str
    source: str
    fingerprint: str
    num_classes: int
    vocab_size: int
    max_len: int
    train: Split
    validation: Split
    test: Split
    tokenizer: str = ""
