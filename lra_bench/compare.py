"""Is one model better than another? In every table that has both, in words and for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import Metric

from .overview import Overview, build_overviews
from .protocols import unknown
from .stats import decimals, format_score
from .tables import Difference, Table


@dataclass(frozen=True)
class Comparison:
    """Two models of one table, or of one table of means, and by how much the first scores more than the second."""

    table: Table | Overview
    first: str
    second: str
    scores: tuple[float, float]
    difference: Difference

    @property
    def better(self) -> str | None:
        """The model that the evidence says is better; None where it does not suffice."""
        return {1: self.first, 0: None, -1: self.second}[self.difference.verdict]

    @property
    def tables(self) -> tuple[Table, ...]:
        """Those of the tasks that a mean is over; of a single task its one."""
        return self.table.tables if isinstance(self.table, Overview) else (self.table,)

    @property
    def caveats(self) -> dict[str, str]:
        """What has to be known of a score of either, by label: of its attention, or of a seed that has none."""
        entries = (entry for table in self.tables for entry in table.entries)
        return {e.label: e.reason for e in entries if e.label in (self.first, self.second) and e.reason}

    @property
    def metric(self) -> Metric:
        return self.tables[0].metric

    def as_row(self) -> dict[str, Any]:
        """For scripts; `better` is None where the evidence does not suffice. Of a mean, tasks are joined by `+`."""
        records = [table.first for table in self.tables]
        return {
            "task": "+".join(r.config.task for r in records),
            "dataset": "+".join(r.data.dataset for r in records),
            "protocol": records[0].config.protocol,
            "device": records[0].machine.device,
            "metric": self.metric,
            "first": self.first,
            "second": self.second,
            "difference": self.difference.value,
            "ci95": self.difference.interval if np.isfinite(self.difference.interval).all() else None,
            "paired": self.difference.paired,
            "better": self.better,
            "caveats": self.caveats,
        }

    def __str__(self) -> str:
        digits = decimals(self.metric)
        unit = "points" if self.metric == "accuracy" else self.metric
        low, high = sorted(abs(bound) for bound in self.difference.interval)
        pairs = zip((self.first, self.second), self.scores, strict=True)
        scores = " and ".join(f"{label} {format_score(score, self.metric)}" for label, score in pairs)
        paired = f"paired over {sum(table.first.data.test_size for table in self.tables):,} test examples"
        how = paired if self.difference.paired else "from their intervals"
        if self.better is None:
            signed = " to ".join(f"{bound:+.{digits}f}" for bound in self.difference.interval)
            verdict = f"the evidence does not suffice: {self.first} less {self.second} is {signed} {unit}"
        else:
            worse = self.second if self.better == self.first else self.first
            verdict = (
                f"{self.better} is better than {worse} by {abs(self.difference.value):.{digits}f} {unit}"
                f" (95 % interval {low:.{digits}f} to {high:.{digits}f})"
            )
        caveats = "".join(f"; {label}: {reason}" for label, reason in self.caveats.items())
        return f"{self.table.title}: {scores}; {verdict}, {how}{caveats}"


def compare(tables: Iterable[Table], first: str, second: str) -> list[Comparison]:
    """The two labelled models in every table of means over tasks and in every table that has both.

    Raises ConfigError for a label that is in no table. Tables in which one of the two has no score are left out.
    """
    tables = list(tables)
    labels = {entry.label for table in tables for entry in table.entries}
    for label in (first, second):
        if label not in labels:
            raise unknown("model", label, labels)
    found = []
    for overview in build_overviews(tables):
        rows = {row.label: row for row in overview.rows}
        if first in rows and second in rows:
            a, b = rows[first], rows[second]
            if a.mean is not None and b.mean is not None:
                found.append(Comparison(overview, first, second, (a.mean, b.mean), overview.difference(a, b)))
    for table in tables:
        entries = {entry.label: entry for entry in table.entries}
        if first in entries and second in entries:
            x, y = entries[first], entries[second]
            if x.score is not None and y.score is not None:
                found.append(Comparison(table, first, second, (x.score, y.score), table.difference(x, y)))
    return found
