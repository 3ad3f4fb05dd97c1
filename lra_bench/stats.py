"""Scores: which way is better, and intervals for accuracies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tasks import Metric

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


def paired_bootstrap(
    a: NDArray[np.float64], b: NDArray[np.float64], resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of mean(a - b) when the items are drawn anew, with replacement (Efron 1979).

    a, b: a score per item, `[num_items]`, of two models on the same items.
    """
    difference = np.asarray(a - b, dtype=np.float64)
    # How often each value comes up is all that a resample is; there are few values, however many items.
    values, counts = np.unique(difference, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(difference), counts / len(difference), size=resamples)
    low, high = np.percentile(drawn @ values / len(difference), [2.5, 97.5])
    return float(low), float(high)
