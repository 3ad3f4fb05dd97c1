"""ListOps at full length: nested MIN, MAX, MED and SM over digits (Nangia and Bowman 2018; Tay et al. 2021)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from .dataset import DataError, Dataset, Split
from .listops_text import read_expressions, write_expressions
from .listops_trees import CLOSE, FIRST_DIGIT, FIRST_OPERATOR, sample_expressions
from .packed import PackedSequences
from .registry import HubSource, TaskLoader, register_task

SIZES = {"train": 96_000, "validation": 2_000, "test": 2_000}
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
TREES_AT_ONCE = 4096


@register_task("listops")
class ListOpsTask(TaskLoader):
    """Generates the data by default; reads the release's `basic_{train,val,test}.tsv`, its parentheses included."""

    def find(self, folder: Path) -> list[Path]:
        for base in (folder, folder / "listops-1000", folder / "listops", folder / "lra_release" / "listops-1000"):
            files = [base / name for name in FILES.values()]
            if all(file.is_file() for file in files):
                return files
        raise DataError(
            f"no ListOps files in {folder}: expected listops-1000/basic_{{train,val,test}}.tsv;"
            " without --data the set is generated here"
        )

    def read(self, files: list[Path]) -> Dataset:
        splits = {split: read_expressions(file) for split, file in zip(FILES, files, strict=True)}
        return Dataset("listops-release", splits)

    def download(self, hub: HubSource) -> Dataset:
        import datasets

        splits = {}
        for split in FILES:
            table = datasets.load_dataset(hub.repo, revision=hub.revision, split=split)
            lines = (f"{s}\t{t}\n".encode() for s, t in zip(table["Source"], table["Target"], strict=True))
            splits[split] = read_expressions(Path(f"{hub.repo}/{split}"), b"".join(lines))
        return Dataset("listops-release", splits)

    def generate(self) -> Dataset:
        seen: set[bytes] = set()
        splits = {name: generate_split(seed, size, seen) for seed, (name, size) in enumerate(SIZES.items())}
        return Dataset("listops-generated", splits)

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        written = []
        for split, name in FILES.items():
            written.append(folder / "listops-1000" / name)
            write_expressions(written[-1], dataset.splits[split])
        return written

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        """The best guess from the root operator, and from it with the digits directly below it."""
        train = train.sample(10_000)  # fills so small a table as well as all of it
        seen, asked = ([_features(s.inputs[0], i) for i in range(len(s))] for s in (train, test))
        roots_seen, roots_asked = [root for root, _ in seen], [root for root, _ in asked]
        return {
            "root operator": _lookup_accuracy(roots_seen, train.labels, roots_asked, test.labels),
            "root operator and its digits": _lookup_accuracy(seen, train.labels, asked, test.labels),
        }


def generate_split(seed: int, size: int, seen: set[bytes]) -> Split:
    """`size` expressions drawn with `seed`, none of them in `seen`, to which they are added."""
    rng = np.random.default_rng([2021, seed])
    tokens: list[NDArray[np.integer]] = []
    values: list[int] = []
    with tqdm(total=size, desc=f"generating ListOps, part {seed + 1} of {len(SIZES)}", unit="", disable=None) as bar:
        while len(values) < size:
            packed, lengths, value = sample_expressions(rng, TREES_AT_ONCE)
            for end, length, v in zip(np.cumsum(lengths), lengths, value.tolist(), strict=True):
                expression = packed[end - length : end]
                key = expression.tobytes()
                if key not in seen and len(values) < size:
                    seen.add(key)
                    tokens.append(expression)
                    values.append(v)
                    bar.update()
    offsets = np.cumsum([0, *map(len, tokens)])
    return Split((PackedSequences.from_offsets(np.concatenate(tokens), offsets),), np.array(values, np.int64))


def _features(sequences: PackedSequences, index: int) -> tuple[int, int]:
    """Root operator, and what the digits directly below it would give alone (10 where there are none)."""
    tokens = sequences[index].astype(np.int64)
    opening = (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)
    depth = np.cumsum(opening) - np.cumsum(tokens == CLOSE)
    root = int(tokens[0]) - FIRST_OPERATOR
    digits = np.sort(tokens[(depth == 1) & (tokens < FIRST_OPERATOR)] - FIRST_DIGIT)
    if not len(digits):
        return root, 10
    median = (digits[(len(digits) - 1) // 2] + digits[len(digits) // 2]) // 2
    return root, int((digits[0], digits[-1], median, digits.sum() % 10)[root])


def _lookup_accuracy(
    seen: Sequence[object], labels: NDArray[np.int64], asked: Sequence[object], answers: NDArray[np.int64]
) -> float:
    """Percent right when everything asked gets the commonest label seen with its key."""
    counts: dict[object, Counter[int]] = defaultdict(Counter)
    for key, label in zip(seen, labels.tolist(), strict=True):
        counts[key][label] += 1
    best = {key: counter.most_common(1)[0][0] for key, counter in counts.items()}
    return 100 * float(np.mean([best.get(key) == answer for key, answer in zip(asked, answers.tolist(), strict=True)]))
