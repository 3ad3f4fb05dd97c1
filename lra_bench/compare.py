"""Is one model better than another? In every table that has both, in words and for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .resolve import unknown
from .stats import decimals, format_score
from .tables import Difference, Entry, Table


@dataclass(frozen=True)
class Comparison:
    """Two entries of one table, and by how much the first scores more than the second."""

    table: Table
    first: Entry
    second: Entry
    difference: Difference

    @property
    def better(self) -> Entry | None:
        """The entry that the evidence says is better; None where it does not suffice."""
        return {1: self.first, 0: None, -1: self.second}[self.difference.verdict]

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
            "difference": self.difference.value,
            "ci95": self.difference.interval if np.isfinite(self.difference.interval).all() else None,
            "paired": self.difference.paired,
            "better": self.better.label if self.better else None,
        }

    def __str__(self) -> str:
        metric, digits = self.table.metric, decimals(self.table.metric)
        unit = "points" if metric == "accuracy" else metric
        low, high = sorted(abs(bound) for bound in self.difference.interval)
        scores = " and ".join(f"{e.label} {format_score(e.score or 0.0, metric)}" for e in (self.first, self.second))
        paired = f"paired over {self.table.first.data.test_size:,} test examples"
        how = paired if self.difference.paired else "from their intervals"
        if self.better is None:
            signed = " to ".join(f"{bound:+.{digits}f}" for bound in self.difference.interval)
            verdict = f"the evidence does not suffice: {self.first.label} less {self.second.label} is {signed} {unit}"
        else:
            worse = self.second if self.better is self.first else self.first
            verdict = (
                f"{self.better.label} is better than {worse.label} by {abs(self.difference.value):.{digits}f} {unit}"
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
            a, b = entries[first], entries[second]
            found.append(Comparison(table, a, b, table.difference(a, b)))
    return found
