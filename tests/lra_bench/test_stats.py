"""Intervals: what they promise, kept."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest

from lra_bench.markup import markdown
from lra_bench.records import Record
from lra_bench.stats import bootstrap_scores, range_quantile, score_of_sums, seed_margin
from lra_bench.tables import build_tables, usual_margin
from tasks.translation import bleu, bleu_items

from .test_compare import scored

Make = Callable[..., Record]


def test_the_bootstrap_is_the_normal_approximation_where_that_holds() -> None:
    rng = np.random.default_rng(1)
    a, b = (np.stack([rng.normal(100.0, spread, 4000), np.ones(4000)], axis=1) for spread in (2.0, 1.0))
    first, second = bootstrap_scores([a], "accuracy"), bootstrap_scores([b], "accuracy")
    each = 100 * (a - b)[:, 0]
    middle, half = each.mean(), 1.96 * each.std() / 4000**0.5
    assert np.percentile(first - second, [2.5, 97.5]) == pytest.approx([middle - half, middle + half], abs=0.1 * half)
    assert (bootstrap_scores([a], "accuracy") == first).all()
    assert bootstrap_scores([a, b], "accuracy") == pytest.approx((first + second) / 2)


def test_scores_of_resampled_items_are_those_of_their_texts() -> None:
    rng = np.random.default_rng(0)
    words = np.array("a dog the cat sat ran over hill mat on".split())
    references = [" ".join(rng.choice(words, 9)) for _ in range(40)]
    found = [" ".join(np.where(rng.random(9) < 0.8, text.split(), rng.choice(words, 9))) for text in references]
    items = bleu_items(found, references)
    for _ in range(20):
        drawn = rng.integers(40, size=40)
        expected = bleu([found[i] for i in drawn], [references[i] for i in drawn])[0]
        assert score_of_sums(items[drawn].sum(axis=0), "BLEU") == pytest.approx(expected)
    nats = np.array([[3.0, 2.0], [5.0, 2.0]])
    assert score_of_sums(nats.sum(axis=0), "perplexity") == pytest.approx(np.exp(2.0))
    assert score_of_sums(nats, "bits per byte") == pytest.approx(np.array([1.5, 2.5]) / np.log(2))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 16, 40])
def test_of_two_models_the_quantile_is_student_s_t(freedom: int) -> None:
    t = range_quantile(2, freedom)
    x = np.linspace(0.0, t, 20_001)
    constant = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    density = constant * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert 2 * np.trapezoid(density, x) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize(
    ("models", "freedom", "q"),
    [(2, math.inf, 2.772), (3, math.inf, 3.314), (8, math.inf, 4.286), (20, math.inf, 5.012), (3, 6, 4.339),
     (5, 10, 4.654), (8, 16, 4.896)],
)  # fmt: skip
def test_the_quantile_of_several_is_that_of_printed_tables(models: int, freedom: float, q: float) -> None:
    """Upper 5 % points of the studentized range (Harter 1960)."""
    assert range_quantile(models, freedom) == pytest.approx(q / 2**0.5, abs=5e-4)


def test_seed_margin() -> None:
    # By hand: variances 2 and 0 of two seeds each, pooled 1 with 2 degrees of freedom; t is 4.30265.
    assert seed_margin([(60.0, 62.0), (50.0, 50.0)], 2, 2) == pytest.approx(4.30265)
    assert seed_margin([(60.0, 62.0), (50.0, 50.0), (40.0,)], 2, 1) == pytest.approx(4.30265 * 1.5**0.5)
    assert seed_margin([(60.0,), (50.0,)], 1, 1) == 0.0
    # Its promise: two models that only seeds tell apart differ by more than it in 5 % of cases.
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(20_000, 2, 3))
    beyond = [abs(a.mean() - b.mean()) > seed_margin([a.tolist(), b.tolist()], 3, 3) for a, b in drawn]
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.005)


def test_a_table_says_what_it_takes_to_be_told_apart(make_record: Make) -> None:
    records = [make_record(model, score) for model, score in (("rfa", 60.0), ("sdpa", 59.0), ("softmax", 50.0))]
    (table,) = build_tables(records)
    # 2.344 standard errors, of two proportions over 4,000 examples.
    expected = 234.4 * (0.6 * 0.4 / 4000 + 0.59 * 0.41 / 4000) ** 0.5
    assert usual_margin(table.pairs) == pytest.approx(expected, abs=0.05)
    assert f"95 % interval, mostly ± {expected:.1f} here, which holds" in markdown([table])
    assert "95 % interval, which holds" in markdown(build_tables(records[:1]))


@pytest.mark.parametrize(("seeds", "pair_by_pair"), [(1, 0.4), (2, 0.15)])
def test_of_equal_models_a_table_seldom_tells_any_two_apart(make_record: Make, seeds: int, pair_by_pair: float) -> None:
    """In 5 % of tables, as an interval promises, however many pairs there are; pair by pair in far more."""
    rng = np.random.default_rng(0)
    models = "softmax sdpa rfa rfa-arccos linear linformer performer reformer".split()
    rounds, examples = 100, 400
    blank = {
        (model, seed): make_record(model, seed=seed, test_size=examples) for model in models for seed in range(seeds)
    }
    told = told_pair_by_pair = 0
    for _ in range(rounds):
        # Some examples are hard for all, and seeds differ by a few points.
        easy = rng.normal(size=examples)
        records = []
        for (model, seed), record in blank.items():
            luck = 0.1 * rng.normal() if seeds > 1 else 0.0
            right = easy + rng.normal(size=examples) + luck > -0.3
            records.append(scored(lambda *_, known=record, **__: known, model, right, seed))
        (table,) = build_tables(records)
        told += any(table.rank(entry) != "1=" for entry in table.entries)
        told_pair_by_pair += any(table.difference(a, b).verdict for a, b in combinations(table.entries, 2))
    assert told <= 0.12 * rounds
    assert told_pair_by_pair >= pair_by_pair * rounds
