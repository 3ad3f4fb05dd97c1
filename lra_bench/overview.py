"""Tables of several tasks -> one with the mean of their accuracies, as papers on the Long Range Arena print it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby
from math import hypot
from statistics import geometric_mean, mean

from .entry import Entry, by_name
from .tables import Difference, Pair, Table, rank_among


@dataclass(frozen=True)
class Row:
    """One model: its entry in each of the tables, None where it was not run."""

    label: str
    entries: tuple[Entry | None, ...]

    @property
    def mean(self) -> float | None:
        """Mean accuracy, every task counting alike; None unless the model has a score on every one."""
        scores = [e.score for e in self.entries if e and e.score is not None]
        return mean(scores) if len(scores) == len(self.entries) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean, from those of the scores, whose test examples have nothing in common."""
        if self.mean is None:
            return None
        return _mean_interval((e.score, e.interval) for e in self.entries if e and e.score is not None and e.interval)


@dataclass(frozen=True)
class Overview:
    """Tables of different tasks, by name, under one protocol on one machine."""

    tables: tuple[Table, ...]

    @property
    def title(self) -> str:
        first = self.tables[0].first
        return f"Mean of {len(self.tables)} tasks, protocol {first.config.protocol_label}, {first.machine.label}"

    @property
    def slug(self) -> str:
        """For links and labels; what is behind the tables' own is hashed into it."""
        config, slugs = self.tables[0].first.config, " ".join(table.slug for table in self.tables)
        return f"mean-{config.protocol}-{config.device}-{hashlib.sha256(slugs.encode()).hexdigest()[:6]}"

    @cached_property
    def rows(self) -> list[Row]:
        """The models, best mean first, then those without one."""
        found: list[dict[str, Entry]] = [{e.label: e for e in table.entries} for table in self.tables]
        labels = dict.fromkeys(label for entries in found for label in entries)
        rows = [Row(label, tuple(entries.get(label) for entries in found)) for label in labels]
        return sorted(rows, key=lambda row: (row.mean is None, -(row.mean or 0.0), by_name(row.label)))

    def rank(self, row: Row) -> str:
        """As `Table.rank`, by the difference of means; empty for a model without a mean."""
        return "" if row.mean is None else rank_among(self.pairs, row)

    @cached_property
    def pairs(self) -> list[Pair[Row]]:
        """All pairs of rows with means, and their differences as ranks go by them."""
        known = [row for row in self.rows if row.mean is not None]
        return [(a, b, self.difference(a, b, models=len(known))) for a, b in combinations(known, 2)]

    def difference(self, a: Row, b: Row, models: int = 2) -> Difference:
        """a's mean less b's with its 95 % interval, from those of every table. Both need means. models: see `Table`."""
        pairs = zip(self.tables, a.entries, b.entries, strict=True)
        found = [table.difference(x, y, models) for table, x, y in pairs if x and y]
        value, interval = mean(d.value for d in found), _mean_interval((d.value, d.interval) for d in found)
        return Difference(value, interval, all(d.paired for d in found), lower_is_better=False)

    def ratio(self, row: Row, name: str) -> float | None:
        """Geometric mean over the tasks of `Table.ratio`; None unless every table has one."""
        ratios = [table.ratio(entry, name) for table, entry in zip(self.tables, row.entries, strict=True) if entry]
        known = [ratio for ratio in ratios if ratio]
        return geometric_mean(known) if len(known) == len(self.tables) else None

    @property
    def baselines(self) -> dict[str, list[float]]:
        """Accuracies of guesses without a model, on every task: those that all tasks have, and the best of each."""
        found = [table.baselines for table in self.tables]
        shared = [name for name in found[0] if all(name in guesses for guesses in found)]
        best = {"best guess without a model": [max(guesses.values()) for guesses in found]} if all(found) else {}
        return best | {name: [guesses[name] for guesses in found] for name in shared}


def _mean_interval(parts: Iterable[tuple[float, tuple[float, float]]]) -> tuple[float, float]:
    """The interval of a mean of independent values, from each value and its interval: half-widths add in quadrature."""
    values, below, above = zip(*((value, value - low, high - value) for value, (low, high) in parts), strict=True)
    return mean(values) - hypot(*below) / len(values), mean(values) + hypot(*above) / len(values)


def build_overviews(tables: Iterable[Table]) -> list[Overview]:
    """An overview for every protocol, with its changes, and machine under which several tasks were run.

    Of tasks that are scored by accuracy, on real data, and run on one data set each: else a mean would say nothing.
    """

    def key(table: Table) -> tuple[str, ...]:
        config = table.first.config
        return config.protocol, config.changed, config.device, table.first.machine.label

    eligible = [t for t in tables if any(e.metric == "accuracy" for e in t.entries) and not t.synthetic]
    groups = [tuple(group) for _, group in groupby(sorted(eligible, key=key), key=key)]
    return [Overview(group) for group in groups if 1 < len(group) == len({t.first.config.task for t in group})]
