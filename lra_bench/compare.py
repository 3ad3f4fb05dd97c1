"""Is one model better than another? Paired over the same test examples where the records tell which were right.

Where models have several seeds, what these differ by widens the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import Record, Result, unpack_bits
from .resolve import unknown
from .stats import decimals, format_score, lower_is_better, paired_bootstrap
from .tables import Entry, Table


@dataclass(frozen=True)
class Comparison:
    """The first entry's score less the second's in one table, with its 95 % interval over test examples and seeds.

    paired: by resampling test examples, the same for both; else from the two intervals (Newcombe 1998).
    """

    table: Table
    first: Entry
    second: Entry
    difference: float
    interval: tuple[float, float]
    paired: bool

    @property
    def better(self) -> Entry | None:
        """The entry that the evidence says is better; None where it does not suffice."""
        low, high = self.interval
        if low <= 0 <= high:
            return None
        return self.first if (self.difference > 0) != lower_is_better(self.table.metric) else self.second

    def as_row(self) -> dict[str, Any]:
        """For scripts; `better` is None where the evidence does not suffice."""
        r = self.table.first
        return {
            "task": r.config.task,
            "dataset": r.data.dataset,
            "protocol": r.config.protocol,
            "device": r.machine.device,
            "metric": self.table.metric,
            "first": self.first.label,
            "second": self.second.label,
            "difference": self.difference,
            "ci95": self.interval if np.isfinite(self.interval).all() else None,
            "paired": self.paired,
            "better": self.better.label if self.better else None,
        }

    def __str__(self) -> str:
        metric, digits = self.table.metric, decimals(self.table.metric)
        unit = "points" if metric == "accuracy" else metric
        low, high = sorted(abs(bound) for bound in self.interval)
        scores = " and ".join(f"{e.label} {format_score(e.score or 0.0, metric)}" for e in (self.first, self.second))
        how = (
            f"paired over {self.table.first.data.test_size:,} test examples" if self.paired else "from their intervals"
        )
        if self.better is None:
            signed = " to ".join(f"{bound:+.{digits}f}" for bound in self.interval)
            verdict = f"the evidence does not suffice: {self.first.label} less {self.second.label} is {signed} {unit}"
        else:
            worse = self.second if self.better is self.first else self.first
            verdict = (
                f"{self.better.label} is better than {worse.label} by {abs(self.difference):.{digits}f} {unit}"
                f" (95 % interval {low:.{digits}f} to {high:.{digits}f})"
            )
        return f"{self.table.title}: {scores}; {verdict}, {how}"


def compare(tables: Iterable[Table], first: str, second: str) -> list[Comparison]:
    """The two labelled entries in every table that has both.

    Raises ConfigError for a label that is in no table. Tables in which one of the two has no score are left out.
    """
    tables = list(tables)
    labels = {entry.label for table in tables for entry in table.entries}
    for label in (first, second):
        if label not in labels:
            raise unknown("model", label, labels)
    found = []
    for table in tables:
        entries = {entry.label: entry for entry in table.entries if entry.score is not None}
        if first in entries and second in entries:
            found.append(_compare(table, entries[first], entries[second]))
    return found


def _compare(table: Table, a: Entry, b: Entry) -> Comparison:
    assert a.score is not None
    assert b.score is not None
    difference = a.score - b.score
    right = [_right(entry.scored, table.first.data.test_size) for entry in (a, b)]
    low, high, paired = -np.inf, np.inf, False
    if right[0] is not None and right[1] is not None:
        low, high = paired_bootstrap(100 * right[0].mean(axis=0), 100 * right[1].mean(axis=0))
        paired = True
    elif a.interval is not None and b.interval is not None:
        low = difference - hypot(a.score - a.interval[0], b.interval[1] - b.score)
        high = difference + hypot(a.interval[1] - a.score, b.score - b.interval[0])
    seeds = table.seed_margin(a, b)
    interval = (difference - hypot(difference - low, seeds), difference + hypot(high - difference, seeds))
    return Comparison(table, a, b, difference, interval, paired)


def _right(records: Sequence[Record], count: int) -> NDArray[np.bool_] | None:
    """Which examples each seed got right, `[seeds, examples]`; None where a record does not tell."""
    texts = [r.result.right for r in records if isinstance(r.result, Result) and r.result.right]
    return np.stack([unpack_bits(text, count) for text in texts]) if texts and len(texts) == len(records) else None
