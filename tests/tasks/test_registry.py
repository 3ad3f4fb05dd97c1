"""What a loader may hand over, a plugin's for one."""

from pathlib import Path

import numpy as np
import pytest

from tasks import DataError, Dataset, PackedSequences, Split, load_task
from tasks.text import TextTask

TOKENS = PackedSequences.from_list([[1, 2], [256], [3, 4], [5], [6]])
LABELS = np.array([0, 1, 0, 1, 0])
GOOD = Split((TOKENS,), LABELS)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": GOOD}, "splits from embedded generator are train; expected train, test and perhaps validation"),
        ({"train": GOOD, "valid": GOOD, "test": GOOD}, "splits from embedded generator are train, valid, test; "),
        ({"train": GOOD, "test": GOOD.select(LABELS[:0])}, "the test split from embedded generator is empty"),
        ({"train": GOOD, "test": Split((TOKENS, TOKENS), LABELS)}, "test: 2 inputs an example; num_inputs .* is 1"),
        ({"train": Split((TOKENS,), LABELS.astype(np.int32)), "test": GOOD}, "train: labels are int32; expected int64"),
        ({"train": Split((TOKENS,), LABELS + 1), "test": GOOD}, r"train: a label is not in 0\.\.1"),
        (
            {"train": Split((PackedSequences.from_list([[257]] * 5),), LABELS), "test": GOOD},
            r"a token is not in 1\.\.256",
        ),
        ({"train": Split((PackedSequences.from_list([[0]] * 5),), LABELS), "test": GOOD}, "0 is padding"),
    ],
)
def test_a_loader_that_hands_over_what_cannot_be(
    splits: dict[str, Split], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(TextTask, "generate", lambda self: Dataset("given", splits))
    with pytest.raises(DataError, match=f"task 'text'.*{message}"):
        load_task("text", data="embedded")


def test_every_example_has_a_label() -> None:
    with pytest.raises(DataError, match="a split has 5 sequences and 4 labels; expected as many"):
        Split((TOKENS,), LABELS[:4])
