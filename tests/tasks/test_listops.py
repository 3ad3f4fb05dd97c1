"""ListOps: the generator against a naive one, the release's files, trivial baselines."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks import DataError, Split, export_dataset, load_dataset, load_task, trivial_baselines
from tasks import listops as listops_module
from tasks.dataset import Dataset
from tasks.listops import generate_split
from tasks.listops_text import read_expressions, write_expressions
from tasks.listops_trees import OPERATORS, SYMBOLS, sample_expressions

from .naive_listops import Tree, apply, depth, length, parse, release_text, sample_kept, sample_tree, value


@pytest.fixture(scope="module")
def sample() -> Split:
    return generate_split(7, 3_000, set())


def tokens_of(tree: Tree) -> list[int]:
    if isinstance(tree, int):
        return [1 + tree]
    return [1 + SYMBOLS.index(tree[0]), *(t for a in tree[1] for t in tokens_of(a)), 15]


def test_every_label_is_right_and_every_length_allowed(sample: Split) -> None:
    (expressions,) = sample.inputs
    for i in range(len(sample)):
        tree = parse(expressions[i].tolist())
        assert tokens_of(tree) == expressions[i].tolist()
        assert value(tree) == sample.labels[i]
        assert 500 < length(tree) == len(expressions[i]) < 2000
        assert depth(tree) <= 10
    assert len({expressions[i].tobytes() for i in range(len(sample))}) == 3_000


def test_distribution_is_that_of_the_naive_generator(sample: Split) -> None:
    """Lengths, depths, operators, argument counts, digits and labels, each within five standard errors."""
    rng = random.Random(3)
    naive = [sample_kept(rng) for _ in range(500)]
    (expressions,) = sample.inputs
    fast = [parse(expressions[i].tolist()) for i in range(1_500)]

    def features(tree: Tree) -> list[float]:
        counts: Counter[str] = Counter()
        arguments = []

        def visit(node: Tree) -> None:
            if isinstance(node, int):
                counts[str(node)] += 1
            else:
                counts[node[0]] += 1
                arguments.append(len(node[1]))
                for child in node[1]:
                    visit(child)

        visit(tree)
        size = sum(counts.values())
        shares = [counts[s] / size for s in (*OPERATORS, *map(str, range(10)))]
        labels = [float(value(tree) == label) for label in range(10)]
        return [length(tree), length(tree) ** 2, depth(tree), float(np.mean(arguments)), *shares, *labels]

    a, b = np.array([features(t) for t in naive]), np.array([features(t) for t in fast])
    error = np.sqrt(a.var(0) / len(a) + b.var(0) / len(b))
    # Depth is 10 in all but a few trees; a floor keeps a constant column from dividing by zero.
    assert (np.abs(a.mean(0) - b.mean(0)) / np.maximum(error, 1e-3)).max() < 5


def test_about_one_tree_in_twelve_is_kept() -> None:
    _, lengths, _ = sample_expressions(np.random.default_rng(0), 20_000)
    assert 0.075 < len(lengths) / 20_000 < 0.09


def test_small_trees_too() -> None:
    """Without the length filter every tree is kept and evaluated, lone digits included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.listops_trees.MIN_LENGTH", 0)
        tokens, lengths, values = sample_expressions(np.random.default_rng(1), 2_000)
    ends = np.cumsum(lengths)
    trees = [parse(tokens[e - n : e].tolist()) for e, n in zip(ends, lengths, strict=True)]
    assert [value(t) for t in trees] == values.tolist()
    # Three roots in four are digits; the few trees past the upper bound are missing from the count.
    assert (lengths == 1).mean() == pytest.approx(0.755, abs=0.035)


@pytest.mark.parametrize(
    ("values", "median", "total"), [([1, 2], 1, 3), ([9, 0], 4, 9), ([3, 1, 2], 2, 6), ([9, 9, 9, 9], 9, 6)]
)
def test_operators_by_hand(values: list[int], median: int, total: int) -> None:
    assert apply("[MED", values) == median
    assert apply("[SM", values) == total


def test_seeded_and_splits_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listops_module, "SIZES", {"train": 300, "validation": 50, "test": 50})
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "one"))
    first = load_task("listops")
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "two"))
    assert load_task("listops").fingerprint == first.fingerprint
    assert (first.dataset, first.source) == ("listops-generated", "embedded generator")
    seen = [{s.inputs[0][i].tobytes() for i in range(len(s))} for s in (first.train, first.validation, first.test)]
    assert [len(s) for s in seen] == [300, 50, 50]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


def test_generated_data_stay_what_they_are() -> None:
    """A cache made before would hold other data under the same name: raise `version` in configs/tasks with these."""
    split = generate_split(0, 20, set())
    assert Dataset("listops-generated", {"train": split}).fingerprint().startswith("d06981d1a6da")


def test_lengths_lie_between_the_bounds_and_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.listops_trees.MIN_LENGTH", 4)
    monkeypatch.setattr("tasks.listops_trees.MAX_LENGTH", 12)
    _, lengths, _ = sample_expressions(np.random.default_rng(1), 2_000)
    assert sorted(set(lengths.tolist())) == list(range(5, 12))


def test_what_was_seen_before_is_not_drawn_again() -> None:
    seen: set[bytes] = set()
    first = generate_split(1, 20, seen)
    again = generate_split(1, 20, seen)
    assert not {first.inputs[0][i].tobytes() for i in range(20)} & {again.inputs[0][i].tobytes() for i in range(20)}


def test_export_is_the_release_and_reads_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listops_module, "SIZES", {"train": 30, "validation": 5, "test": 5})
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    dataset, *_ = load_dataset("listops", "embedded")
    files = export_dataset("listops", dataset, tmp_path)
    assert [f.name for f in files] == ["basic_train.tsv", "basic_val.tsv", "basic_test.tsv"]
    lines = files[0].read_text().splitlines()
    assert lines[0] == "Source\tTarget"
    train = dataset.splits["train"]
    for i, line in enumerate(lines[1:]):
        assert line == release_text(parse(train.inputs[0][i].tolist())) + f"\t{train.labels[i]}"
    for folder in (tmp_path, tmp_path / "listops-1000"):
        task = load_task("listops", data=folder)
        assert task.dataset == "listops-release"
        for split, loaded in (("train", task.train), ("validation", task.validation), ("test", task.test)):
            original = dataset.splits[split]
            assert np.array_equal(loaded.labels, original.labels)
            assert all(np.array_equal(loaded.inputs[0][i], original.inputs[0][i]) for i in range(len(loaded)))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), newline=st.sampled_from(["\n", "\r\n"]), binary=st.booleans())
def test_any_writing_of_a_tree_is_read(seed: int, newline: str, binary: bool) -> None:
    rng = random.Random(seed)
    trees = [sample_tree(rng) for _ in range(5)]
    write = release_text if binary else lambda t: release_text(t).replace("( ", "").replace(" )", "")
    content = newline.join(f"{write(t)}\t{value(t)}" for t in trees)
    split = read_expressions(Path("x.tsv"), f"Source\tTarget{newline}{content}{newline}".encode())
    assert [split.inputs[0][i].tolist() for i in range(5)] == [tokens_of(t) for t in trees]
    assert split.labels.tolist() == [value(t) for t in trees]


def test_what_the_generator_never_draws_is_written_as_it_was_read(tmp_path: Path) -> None:
    rows = [
        "[MAX " + " ".join("0123456789012") + " ]\t9",
        "7\t7",
        "[MIN 5 [SM 9 9 9 9 9 9 9 9 9 9 9 ] ]\t5",
        "[MED 3 ]\t3",
    ]
    split = read_expressions(tmp_path / "x.tsv", "\n".join(rows).encode())
    write_expressions(tmp_path / "x.tsv", split)
    again = read_expressions(tmp_path / "x.tsv")
    assert [again.inputs[0][i].tolist() for i in range(4)] == [split.inputs[0][i].tolist() for i in range(4)]
    assert again.labels.tolist() == split.labels.tolist() == [9, 7, 5, 3]


def test_blocks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    trees = [sample_tree(rng) for _ in range(40)]
    file = tmp_path / "x.tsv"
    file.write_text("Source\tTarget\n" + "".join(f"{release_text(t)}\t{value(t)}\n" for t in trees))
    for size in (20, 1000, 10**6):
        monkeypatch.setattr("tasks.listops_text.BLOCK_BYTES", size)
        split = read_expressions(file)
        assert [split.inputs[0][i].tolist() for i in range(40)] == [tokens_of(t) for t in trees]


def test_others_labels_agree_with_our_evaluator() -> None:
    """10,000 expressions labelled by Nangia and Bowman (2018), where the data folder is there."""
    folder = Path(__file__).parents[3] / "shared" / "data" / "listops"
    if not folder.is_dir():
        pytest.skip("needs listops/nyu_d20s_test.parquet beside the checkout")
    table = pd.read_parquet(folder / "nyu_d20s_test.parquet")
    rows = [f"{text}\t{label}" for text, label in zip(table["text"], table["label"], strict=True)]
    split = read_expressions(Path("nyu"), "\n".join(rows).encode())
    assert [value(parse(split.inputs[0][i].tolist())) for i in range(len(split))] == table["label"].tolist()


def labelled(*rows: tuple[str, int]) -> Split:
    return read_expressions(Path("x"), "\n".join(f"{text}\t{label}" for text, label in rows).encode())


@pytest.mark.parametrize(
    ("seen", "asked", "alike"),
    [
        ("[SM 9 9 ]", "[SM 4 4 ]", True),
        ("[SM 9 9 ]", "[SM 4 3 ]", False),
        ("[MED 1 2 9 ]", "[MED 0 2 3 ]", True),
        ("[MED 1 4 ]", "[MED 2 3 ]", True),
        ("[MED 1 4 ]", "[MED 1 2 ]", False),
        ("[MIN 3 5 6 ]", "[MIN 9 3 ]", True),
        ("[MIN 3 5 ]", "[MAX 3 0 ]", False),
        ("[MAX 3 5 6 ]", "[MAX 6 ]", True),
        ("[MAX 3 [MIN 9 9 ] ]", "[MAX 3 1 ]", True),
        ("[MAX [MIN 1 2 ] 0 ]", "[MAX [MIN 1 2 ] [MIN 0 0 ] ]", False),
    ],
)
def test_a_guess_knows_the_root_and_what_its_own_digits_give(seen: str, asked: str, alike: bool) -> None:
    found = trivial_baselines("listops", labelled((seen, 7)), labelled((asked, 7)))
    assert found["root operator and its digits"] == 100 * alike


def test_trivial_baselines_by_hand() -> None:
    train = labelled(
        ("[MAX 9 1 ]", 9), ("[MAX 9 3 ]", 9), ("[MIN 0 4 ]", 0), ("[MAX 5 [MIN 1 2 ] ]", 5), ("[MAX 9 9 ]", 9)
    )
    test = labelled(("[MAX 9 2 ]", 9), ("[MAX 5 1 ]", 5), ("[MIN 0 1 ]", 0), ("[MIN 0 [SM 1 2 ] ]", 0))
    assert trivial_baselines("listops", train, test) == {
        "majority class": 25.0,
        "root operator": 75.0,
        "root operator and its digits": 100.0,
    }


def test_baselines_lie_on_the_known_plateaus(sample: Split) -> None:
    found = trivial_baselines("listops", sample, sample)
    assert 14 < found["majority class"] < 20
    assert 33 < found["root operator"] < 39
    assert 45 < found["root operator and its digits"] < 54


def test_no_files_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="without --data the set is generated here"):
        load_task("listops", data=tmp_path)
