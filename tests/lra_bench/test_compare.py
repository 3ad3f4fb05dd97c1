"""A against B on the same test examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lra_bench.compare import compare
from lra_bench.config import ConfigError
from lra_bench.packing import pack_bits, pack_numbers, unpack_bits, unpack_numbers
from lra_bench.records import Record, Result, Score, read_records, write_record
from lra_bench.report import write_report
from lra_bench.stats import score_of_sums
from lra_bench.tables import build_tables
from tasks import Metric

from .test_cli import lra_bench

Make = Callable[..., Record]
COUNT = 1000


def scored(make: Make, model: str, right: NDArray[np.bool_], seed: int = 0, **rest: object) -> Record:
    share = 100 * float(right.mean())
    result = Result.of(
        int(right.sum()),
        len(right),
        right=pack_bits(right),
        last_accuracy=share,
        validation_accuracy=share,
        best_step=1,
    )
    return make(model, seed=seed, test_size=len(right), **rest).model_copy(update={"result": result})


def nearly_the_same(rng: np.random.Generator, better: int = 30, worse: int = 5) -> tuple[NDArray, NDArray]:
    """Two models that agree on nearly everything: `better` examples only the first has right, `worse` the second."""
    base = rng.random(COUNT) < 0.7
    first, second = base.copy(), base.copy()
    chosen = rng.permutation(COUNT)
    for where, winner, loser in (
        (chosen[:better], first, second),
        (chosen[better : better + worse], second, first),
    ):
        winner[where], loser[where] = True, False
    return first, second


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_bits_come_back(count: int) -> None:
    bits = np.random.default_rng(0).random(count) < 0.5
    assert (unpack_bits(pack_bits(bits), count) == bits).all()
    with pytest.raises(ValueError, match="are not the bits of"):
        unpack_bits(pack_bits(bits), count + 8)


def test_numbers_come_back() -> None:
    numbers = np.random.default_rng(0).integers(0, 2**24, (7, 3)).astype(np.float64)
    assert (unpack_numbers(pack_numbers(numbers), 7) == numbers).all()
    with pytest.raises(ValueError, match="are not the numbers of"):
        unpack_numbers(pack_numbers(numbers), 5)


def test_pairs_show_what_intervals_do_not(make_record: Make) -> None:
    first, second = nearly_the_same(np.random.default_rng(0))
    records = [scored(make_record, "rfa", first), scored(make_record, "softmax", second)]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.difference.paired
    assert found.better is found.first
    assert found.difference.value == pytest.approx(2.5)
    assert 0 < found.difference.interval[0] < 2.5 < found.difference.interval[1]
    assert "rfa is better than softmax by 2.5 points" in str(found)
    (other,) = compare(build_tables(records), "softmax", "rfa")
    assert other.better is other.second
    assert other.difference.interval == pytest.approx(
        (-found.difference.interval[1], -found.difference.interval[0]), abs=0.15
    )
    assert (other.caveats, other.as_row()["caveats"]) == ({}, {})
    # Without the pairs the same numbers are a tie.
    blind = [r.model_copy(update={"result": r.result.model_copy(update={"right": ""})}) for r in records if r.result]
    (found,) = compare(build_tables(blind), "rfa", "softmax")
    assert not found.difference.paired
    assert found.better is None
    assert "the evidence does not suffice" in str(found)


def test_without_pairs_intervals_are_put_together_as_newcombe_s_tenth_method(make_record: Make) -> None:
    """9 of 10 less 3 of 10, the second of his examples (1998, table II), and the other way round."""
    records = [make_record("rfa", 90.0, test_size=10), make_record("softmax", 30.0, test_size=10)]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.difference.interval == pytest.approx((17.05, 80.90), abs=0.01)
    (found,) = compare(build_tables(records), "softmax", "rfa")
    assert found.difference.interval == pytest.approx((-80.90, -17.05), abs=0.01)


def test_models_that_answer_alike_tie(make_record: Make) -> None:
    """Exact attentions do: the interval of their difference is the point 0."""
    right = np.arange(COUNT) % 3 > 0
    (table,) = build_tables([scored(make_record, model, right) for model in ("softmax", "sdpa")])
    assert [table.rank(entry) for entry in table.entries] == ["1=", "1="]
    (found,) = compare([table], "softmax", "sdpa")
    assert (found.difference.interval, found.better) == ((0.0, 0.0), None)


def test_what_has_to_be_known_of_either_is_said(make_record: Make) -> None:
    marked = make_record("rfa", 60.0).model_copy(update={"caveat": "mixes examples"})
    other = make_record("linear", 60.0).model_copy(update={"caveat": "looks at padding"})
    (found,) = compare(build_tables([marked, other, make_record("softmax", 50.0)]), "softmax", "rfa")
    assert str(found).endswith("; rfa: mixes examples")
    assert found.as_row()["caveats"] == {"rfa": "mixes examples"}


def test_seeds_are_averaged_example_by_example(make_record: Make) -> None:
    # Each seed gets other examples right, but as many: the seeds do not differ, and the examples' noise shrinks.
    pairs = [nearly_the_same(np.random.default_rng(2)) for _ in range(3)]
    pairs = [(np.roll(a, 100 * n), np.roll(b, 100 * n)) for n, (a, b) in enumerate(pairs)]
    records = [scored(make_record, "rfa", a, seed) for seed, (a, _) in enumerate(pairs)]
    records += [scored(make_record, "softmax", b, seed) for seed, (_, b) in enumerate(pairs)]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.difference.value == pytest.approx(2.5)
    (single,) = compare(build_tables([records[0], records[3]]), "rfa", "softmax")
    assert np.diff(found.difference.interval) < np.diff(single.difference.interval)


def test_what_seeds_differ_by_counts(make_record: Make) -> None:
    """Two models 2.5 points apart on every seed, which differ by 20: with the seeds, that is no evidence."""
    first, second = nearly_the_same(np.random.default_rng(0))
    spread = np.arange(COUNT) >= COUNT // 5
    records = [
        scored(make_record, model, right & (spread if seed else True), seed)
        for model, right in (("rfa", first), ("softmax", second))
        for seed in (0, 1)
    ]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.difference.paired
    assert found.better is None
    (single,) = compare(build_tables([r for r in records if r.config.seed == 0]), "rfa", "softmax")
    assert single.better is single.first


def language_model(make: Make, name: str, nats: NDArray[np.float64], known: bool = True) -> Record:
    """Segments of ten tokens each."""
    items = np.stack([nats, np.full(len(nats), 10.0)], axis=1)
    value = float(score_of_sums(items.sum(axis=0), "bits per byte"))
    result = Score(metric="bits per byte", score=value, ci95=(value - 0.2, value + 0.2), last_score=value,
                   summands=pack_numbers(items) if known else "", validation_score=value, best_step=1)  # fmt: skip
    return make(name, test_size=len(nats)).model_copy(update={"result": result})


def test_lower_may_be_better_and_segments_are_paired(make_record: Make, tmp_path: Path) -> None:
    """Segments differ a lot, the two models on each by little: only pairs show it, and the ranks with them."""
    rng = np.random.default_rng(0)
    nats = rng.normal(20.0, 5.0, 200)
    others = nats + rng.normal(0.3, 0.5, 200)
    for known in (False, True):
        records = [language_model(make_record, *m, known) for m in (("rfa", nats), ("softmax", others))]
        (table,) = build_tables(records)
        (found,) = compare([table], "softmax", "rfa")
        assert found.difference.paired == known
        assert [table.rank(entry) for entry in table.entries] == (["1", "2"] if known else ["1=", "1="])
        assert found.better is (found.second if known else None)
        assert found.difference.value == pytest.approx(0.03 / np.log(2), abs=0.01)
    assert "rfa is better than softmax by 0.037 bits per byte" in str(found)
    assert "paired over 200 test examples" in str(found)
    for record in records:
        write_record(tmp_path, record)
    assert "summands" not in write_report(tmp_path).read_text()


def test_items_that_are_not_of_the_test_set_make_no_record(
    make_record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = language_model(make_record, "rfa", np.full(200, 20.0))
    wrong = good.model_copy(update={"run_id": "wrong", "data": good.data.model_copy(update={"test_size": 300})})
    bits = scored(make_record, "softmax", np.ones(COUNT, np.bool_))
    short = bits.model_copy(update={"run_id": "short", "data": bits.data.model_copy(update={"test_size": 90})})
    for record in (good, wrong, bits, short):
        write_record(tmp_path, record)
    assert {r.run_id for r in read_records(tmp_path, Record)} == {good.run_id, bits.run_id}
    told = capsys.readouterr().err
    assert "1600 bytes are not the numbers of 300 items" in told
    assert "125 bytes are not the bits of 90 examples" in told


@pytest.mark.parametrize(
    ("metric", "items", "message"),
    [
        ("bits per byte", [[7.0, 10.0]], "make 1.010 bits per byte, not 1.0"),
        ("perplexity", [[7.0, 0.0]], "make inf perplexity, not 1.0"),
        ("perplexity", [[7.0, 10.0, 3.0]], "3 summands are not those of perplexity"),
        ("BLEU", [[7.0, 10.0]], "2 summands are not those of BLEU"),
        ("BLEU", [[4, 3, 2, 1, 4, 3, 2, 1, 4, 4]], "make 100.0 BLEU, not 1.0"),
        ("BLEU", [[np.inf] * 10], "not all of them are numbers"),
    ],
)
def test_items_that_do_not_make_the_score_make_no_record(
    make_record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], metric: Metric, items: Any, message: str
) -> None:
    result = Score(metric=metric, score=1.0, ci95=None, last_score=1.0, summands=pack_numbers(np.array(items)),
                   validation_score=1.0, best_step=1)  # fmt: skip
    write_record(tmp_path, make_record(test_size=1).model_copy(update={"result": result}))
    assert read_records(tmp_path, Record) == []
    assert message in capsys.readouterr().err


def test_examples_that_do_not_make_the_accuracy_make_no_record(
    make_record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = scored(make_record, "rfa", np.arange(COUNT) % 2 == 0)
    assert isinstance(record.result, Result)
    others = record.result.model_copy(update={"right": pack_bits(np.arange(COUNT) % 4 == 0)})
    write_record(tmp_path, record.model_copy(update={"result": others}))
    assert read_records(tmp_path, Record) == []
    assert "its test items make 25.0 %, not 50.0" in capsys.readouterr().err


def test_command_line(make_record: Make, tmp_path: Path) -> None:
    first, second = nearly_the_same(np.random.default_rng(0))
    for record in (scored(make_record, "rfa", first), scored(make_record, "softmax", second)):
        write_record(tmp_path, record)
    write_record(tmp_path, make_record("linear", None, status="oom"))
    done = lra_bench("compare", "rfa", "softmax", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rfa is better than softmax by 2.5 points" in done.stdout
    for names, message in ((("rfa", "softmx"), "did you mean 'softmax'?"), (("rfa", "linear"), "has scores of both")):
        done = lra_bench("compare", *names, "--out", tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr


def test_means_over_tasks_are_compared_first(make_record: Make) -> None:
    """One model ahead on text, the other by as much on ListOps, over twice the examples: level, and said so."""
    first, second = nearly_the_same(np.random.default_rng(0))
    double = {"task": "listops", "dataset": "listops-generated"}
    records = [
        scored(make_record, "rfa", first),
        scored(make_record, "softmax", second),
        scored(make_record, "rfa", np.tile(second, 2), **double),
        scored(make_record, "softmax", np.tile(first, 2), **double),
        make_record("sdpa", 60.0),
    ]
    mean, listops, text = compare(build_tables(records), "rfa", "softmax")
    assert [mean.better, listops.better, text.better] == [None, "softmax", "rfa"]
    assert mean.difference.value == pytest.approx(0.0)
    assert str(mean).startswith("Mean of 2 tasks, protocol quick")
    assert "paired over 3,000 test examples" in str(mean)
    row = mean.as_row()
    assert row["task"] == "listops+text"
    assert row["dataset"] == "listops-generated+imdb"
    assert row["ci95"] == mean.difference.interval
    assert [c.as_row()["task"] for c in compare(build_tables(records), "sdpa", "rfa")] == ["text"]


def test_an_unknown_model_is_named(make_record: Make) -> None:
    with pytest.raises(ConfigError, match="unknown model 'rfaa'; did you mean 'rfa'"):
        compare(build_tables([make_record("rfa")]), "rfa", "rfaa")
