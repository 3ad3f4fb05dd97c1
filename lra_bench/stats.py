"""Scores: which way is better, and how sure one can be of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf
from statistics import variance

import numpy as np
from numpy.typing import NDArray

from tasks import Metric
from tasks.language_modelling import score
from tasks.translation import bleu_of_sums

# Test sets that a bootstrap draws.
RESAMPLES = 2_000
Z95 = 1.959963984540054


def wilson_interval(correct: float, count: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927) of a proportion, in percent.

    correct: successes, a mean over seeds may be fractional; count: trials; z: normal quantile, by default of 95 %.
    """
    share = correct / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    # At 0 and 1 the bounds equal the share, but for rounding.
    return 100 * max(0.0, min(share, centre - half)), 100 * min(1.0, max(share, centre + half))


def lower_is_better(metric: Metric) -> bool:
    """Whether a smaller value of this metric is the better one."""
    return metric in ("bits per byte", "perplexity")


def decimals(metric: Metric) -> int:
    """Digits behind the point that a table shows."""
    return 3 if metric == "bits per byte" else 1


def axis_label(metric: Metric) -> str:
    """The metric with its unit, as a column or an axis names it."""
    return "accuracy %" if metric == "accuracy" else metric


def format_score(score: float, metric: Metric) -> str:
    """A score with its unit, for a sentence."""
    return f"{score:.{decimals(metric)}f} {'%' if metric == 'accuracy' else metric}"


def score_of_sums(sums: NDArray[np.float64], metric: Metric) -> NDArray[np.float64]:
    """The metric of whole test sets from what their items add up to: `[..., summands]` -> `[...]`.

    Of accuracy the summands are (right, 1), of language models (nats, tokens), of BLEU the ten of
    `tasks.translation.bleu_items`. Raises ValueError for another number of them.
    """
    if sums.shape[-1] != (10 if metric == "BLEU" else 2):
        raise ValueError(f"{sums.shape[-1]} summands are not those of {metric}")
    if metric == "BLEU":
        return np.apply_along_axis(bleu_of_sums, -1, sums)
    ratio = sums[..., 0] / sums[..., 1]
    return 100 * ratio if metric == "accuracy" else np.vectorize(score)(ratio, metric)


def bootstrap_scores(items: Sequence[NDArray[np.float64]], metric: Metric) -> NDArray[np.float64]:
    """A model's scores, `[RESAMPLES]`, on test sets drawn from the test items with replacement (Efron 1979).

    Always the same test sets for as many items, so that the difference of two models' scores is paired (for BLEU: Koehn
    2004). items: of each seed, what every test item adds to the score, `[num_items, summands]`, see `score_of_sums`;
    the score is the mean of the seeds'.
    """
    stacked = np.stack(items, axis=1)  # [num_items, seeds, summands]
    flat = stacked.reshape(len(stacked), -1)
    drawn = _times_drawn(len(flat))
    sums = np.concatenate([part.astype(np.float64) @ flat for part in np.array_split(drawn, len(drawn) // 100)])
    return score_of_sums(sums.reshape(len(drawn), *stacked.shape[1:]), metric).mean(axis=-1)


@lru_cache(maxsize=1)
def _times_drawn(num_items: int) -> NDArray[np.uint8]:
    """How often each item is in each test set, `[RESAMPLES, num_items]`."""
    random = np.random.default_rng(0)
    draws = (random.integers(num_items, size=num_items) for _ in range(RESAMPLES))
    return np.stack([np.bincount(draw, minlength=num_items).astype(np.uint8) for draw in draws])


@lru_cache
def range_quantile(models: int, freedom: float = inf) -> float:
    """How many standard errors of a difference hold, in 95 % of cases, all differences of so many equal means at once.

    Tukey's (1953): of eight models that are equal, some two differ by more than 1.96 standard errors in every other
    table of one seed each. Of two means it is Student's t. freedom: degrees of freedom of what the standard error is
    from; without bound where that is known, and of two it is then the normal's 1.96.
    """
    if models == 2 and freedom == inf:
        return Z95
    from scipy.stats import studentized_range  # takes half a second to import

    return float(studentized_range.ppf(0.95, models, freedom) / 2**0.5)


def seed_margin(groups: Iterable[Sequence[float]], *sizes: int, models: int = 2) -> float:
    """Half-width of the 95 % interval that seeds alone give the difference of means over `sizes` many of them.

    groups: every model's scores over its seeds. Their spread is pooled, as few seeds of one model hardly tell it. 0
    where no model has two seeds: then nothing is known of it. models: see `range_quantile`.
    """
    several = [scores for scores in groups if len(scores) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    if not freedom:
        return 0.0
    pooled = sum((len(scores) - 1) * variance(scores) for scores in several) / freedom
    return range_quantile(models, freedom) * (pooled * sum(1 / size for size in sizes)) ** 0.5
