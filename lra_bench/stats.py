"""Scores: which way is better, and how sure one can be of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import variance

import numpy as np
from numpy.typing import NDArray

from tasks import Metric
from tasks.language_modelling import score
from tasks.translation import bleu_of_sums

Z95 = 1.959963984540054
# Student's t that 95 % lie within, for 1, 2, ... degrees of freedom; for more than these the last, a little too wide.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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
    """The metric of whole test sets from what their items add up to: `[..., num_sets, summands]` -> `[..., num_sets]`.

    Of accuracy the summands are (right, 1), of language models (nats, tokens), of BLEU those of
    `tasks.translation.bleu_items`.
    """
    if metric == "BLEU":
        return np.apply_along_axis(bleu_of_sums, -1, sums)
    ratio = sums[..., 0] / sums[..., 1]
    return 100 * ratio if metric == "accuracy" else np.vectorize(score)(ratio, metric)


def paired_bootstrap(
    a: Sequence[NDArray[np.float64]],
    b: Sequence[NDArray[np.float64]],
    metric: Metric,
    resamples: int = 2_000,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % percentile interval of a's score less b's when the test items are drawn anew, with replacement.

    Both are scored on the same items each time (Efron 1979; Koehn 2004 for BLEU). a, b: what the test
    items add to the score, `[num_items, summands]` for each seed of a model, see `score_of_sums`; the model's score is
    the mean over its seeds.
    """
    items = np.stack([*a, *b], axis=1)  # [num_items, seeds of both, summands]
    # How often each value comes up is all that a resample is; of right and wrong there are few values.
    values, counts = np.unique(items.reshape(len(items), -1), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(items), counts / len(items), size=resamples)
    scores = score_of_sums((drawn @ values).reshape(resamples, *items.shape[1:]), metric)
    low, high = np.percentile(scores[:, : len(a)].mean(axis=1) - scores[:, len(a) :].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def seed_margin(groups: Iterable[Sequence[float]], *sizes: int) -> float:
    """Half-width of the 95 % interval that seeds alone give the difference of means over `sizes` many of them.

    groups: every model's scores over its seeds. Their spread is pooled, as few seeds of one model hardly tell it
    (Student's t with pooled variance). 0 where no model has two seeds: then nothing is known of it.
    """
    several = [scores for scores in groups if len(scores) > 1]
    freedom = sum(len(scores) - 1 for scores in several)
    if not freedom:
        return 0.0
    pooled = sum((len(scores) - 1) * variance(scores) for scores in several) / freedom
    return float(T95[min(freedom, len(T95)) - 1] * (pooled * sum(1 / size for size in sizes)) ** 0.5)
