"""A against B on the same test examples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lra_bench.compare import compare
from lra_bench.config import ConfigError
from lra_bench.records import Record, Result, Score, pack_bits, unpack_bits, write_record
from lra_bench.stats import paired_bootstrap, seed_margin
from lra_bench.tables import build_tables

from .test_cli import lra_bench

Make = Callable[..., Record]
COUNT = 1000


def scored(make: Make, model: str, right: NDArray[np.bool_], seed: int = 0) -> Record:
    share = 100 * float(right.mean())
    result = Result.of(
        int(right.sum()),
        len(right),
        right=pack_bits(right),
        last_accuracy=share,
        validation_accuracy=share,
        best_step=1,
    )
    return make(model, seed=seed, test_size=len(right)).model_copy(update={"result": result})


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


def test_the_bootstrap_is_the_normal_approximation_where_that_holds() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(1.0, 2.0, 4000), rng.normal(0.9, 1.0, 4000)
    low, high = paired_bootstrap(a, b)
    middle, half = (a - b).mean(), 1.96 * (a - b).std() / 4000**0.5
    assert low == pytest.approx(middle - half, rel=0.1)
    assert high == pytest.approx(middle + half, rel=0.1)
    assert paired_bootstrap(a, a) == (0.0, 0.0)
    assert paired_bootstrap(a, b) == (low, high)


def test_pairs_show_what_intervals_do_not(make_record: Make) -> None:
    first, second = nearly_the_same(np.random.default_rng(0))
    records = [scored(make_record, "rfa", first), scored(make_record, "softmax", second)]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.paired
    assert found.better is found.first
    assert found.difference == pytest.approx(2.5)
    assert 0 < found.interval[0] < 2.5 < found.interval[1]
    assert "rfa is better than softmax by 2.5 points" in str(found)
    (other,) = compare(build_tables(records), "softmax", "rfa")
    assert other.better is other.second
    assert other.interval == pytest.approx((-found.interval[1], -found.interval[0]), abs=0.15)
    # Without the pairs the same numbers are a tie.
    blind = [r.model_copy(update={"result": r.result.model_copy(update={"right": ""})}) for r in records if r.result]
    (found,) = compare(build_tables(blind), "rfa", "softmax")
    assert not found.paired
    assert found.better is None
    assert "the evidence does not suffice" in str(found)


def test_seeds_are_averaged_example_by_example(make_record: Make) -> None:
    # Each seed gets other examples right, but as many: the seeds do not differ, and the examples' noise shrinks.
    pairs = [nearly_the_same(np.random.default_rng(2)) for _ in range(3)]
    pairs = [(np.roll(a, 100 * n), np.roll(b, 100 * n)) for n, (a, b) in enumerate(pairs)]
    records = [scored(make_record, "rfa", a, seed) for seed, (a, _) in enumerate(pairs)]
    records += [scored(make_record, "softmax", b, seed) for seed, (_, b) in enumerate(pairs)]
    (found,) = compare(build_tables(records), "rfa", "softmax")
    assert found.difference == pytest.approx(2.5)
    (single,) = compare(build_tables([records[0], records[3]]), "rfa", "softmax")
    assert np.diff(found.interval) < np.diff(single.interval)


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
    assert found.paired
    assert found.better is None
    (single,) = compare(build_tables([r for r in records if r.config.seed == 0]), "rfa", "softmax")
    assert single.better is single.first


def test_seed_margin() -> None:
    # By hand: variances 2 and 0 of two seeds each, pooled 1 with 2 degrees of freedom; t is 4.303.
    assert seed_margin([(60.0, 62.0), (50.0, 50.0)], 2, 2) == pytest.approx(4.303)
    assert seed_margin([(60.0, 62.0), (50.0, 50.0), (40.0,)], 2, 1) == pytest.approx(4.303 * 1.5**0.5)
    assert seed_margin([(60.0,), (50.0,)], 1, 1) == 0.0
    # Its promise: two models that only seeds tell apart differ by more than it in 5 % of cases.
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(20_000, 2, 3))
    beyond = [abs(a.mean() - b.mean()) > seed_margin([a.tolist(), b.tolist()], 3, 3) for a, b in drawn]
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.005)


def test_lower_may_be_better(make_record: Make) -> None:
    def language_model(name: str, value: float) -> Record:
        interval = (value - 0.01, value + 0.01)
        score = Score(metric="bits per byte", score=value, ci95=interval, last_score=value, validation_score=value,
                      best_step=1)  # fmt: skip
        return make_record(name).model_copy(update={"result": score})

    (found,) = compare(build_tables([language_model("rfa", 2.2), language_model("softmax", 2.3)]), "softmax", "rfa")
    assert found.better is found.second
    assert "rfa is better than softmax by 0.100 bits per byte" in str(found)


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


def test_an_unknown_model_is_named(make_record: Make) -> None:
    with pytest.raises(ConfigError, match="unknown model 'rfaa'; did you mean 'rfa'"):
        compare(build_tables([make_record("rfa")]), "rfa", "rfaa")
