"""Records -> tables. Only like is ranked with like: one table per task, data, protocol and device."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, groupby
from math import hypot, inf
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tasks import DataError, Metric, task_spec

from .definitions import of_latest_definitions, of_latest_protocols
from .entry import Entry, by_name
from .records import Record
from .stats import Z95, lower_is_better, range_quantile, seed_margin


class Difference(NamedTuple):
    """One score less another with its 95 % interval. paired: from the same test examples, drawn anew for both."""

    value: float
    interval: tuple[float, float]
    paired: bool
    lower_is_better: bool

    @property
    def verdict(self) -> int:
        """1 where the evidence says that the first is better, -1 that the second is, 0 where it does not suffice."""
        low, high = self.interval
        if low > 0 or high < 0:
            return 1 if (low > 0) != self.lower_is_better else -1
        return 0


Compared = TypeVar("Compared")
# The difference is that of the first less the second.
Pair = tuple[Compared, Compared, Difference]


@dataclass(frozen=True)
class Table:
    """Entries that may be compared with each other, best accuracy first."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Record:
        return self.entries[0].first

    @property
    def title(self) -> str:
        r = self.first
        version = f" version {r.data.task_version}" if r.data.task_version > 1 else ""
        return f"{r.config.task}{version} on {r.data.dataset}, protocol {r.config.protocol_label}, {r.machine.label}"

    @property
    def slug(self) -> str:
        """For file names. What a person did not name (changed settings, which card, which bytes) is hashed into it."""
        r = self.first
        rest = f"{r.config.changed} {r.machine.label} {r.data.fingerprint}"
        version = f"-v{r.data.task_version}" if r.data.task_version > 1 else ""
        text = f"{r.config.task}{version}-{r.data.dataset}-{r.config.protocol}-{r.config.device}"
        return re.sub(r"[^A-Za-z0-9._-]+", "_", text) + f"-{hashlib.sha256(rest.encode()).hexdigest()[:6]}"

    def mark_note(self, signs: str = "*†") -> str:
        """For the title of a picture: where to find what these of the signs mean that some of its names bear."""
        shown = [sign for sign in signs if any(sign in entry.star + entry.mark for entry in self.entries)]
        return f" ({' and '.join(shown)}: see the status in the table)" if shown else ""

    @property
    def reference(self) -> Entry | None:
        """The plain softmax entry, to which speed and memory are compared."""
        return next((e for e in self.entries if e.label == "softmax"), None)

    @property
    def validated(self) -> list[Entry]:
        """The entries with a learning curve, by name."""
        return sorted((e for e in self.entries if e.learning_curve), key=lambda e: by_name(e.label))

    @property
    def learning_curves(self) -> dict[str, list[tuple[int, float]]]:
        """Means of the validated entries' curves by label."""
        return {e.label: [(p.step, p.mean) for p in e.learning_curve] for e in self.validated}

    @property
    def synthetic(self) -> bool:
        """Whether the data stands in for real data that could not be had."""
        return self.first.data.dataset.endswith("-synthetic")

    @cached_property
    def metric(self) -> Metric:
        """What the entries are scored by; where none has a score yet, what the task will be."""
        if found := next((e.metric for e in self.entries if e.metric), None):
            return found
        with suppress(DataError):  # a plugin's task is not known here
            return task_spec(self.first.config.task).metric
        return "accuracy"

    @property
    def baselines(self) -> dict[str, float]:
        """Scores of guesses that need no model, worst first; of earlier runs the records may know fewer."""
        found = {name: value for e in self.entries for r in e.records for name, value in r.data.baselines.items()}
        return dict(sorted(found.items(), key=lambda item: item[1], reverse=lower_is_better(self.metric)))

    def plateau(self, entry: Entry) -> str:
        """The trivial baseline that a score shows no more than: the nearest within its interval.

        Of a score that is worse than all of them, the worst.
        """
        score, interval = entry.score, entry.interval
        if score is None or interval is None:
            return ""
        low, high = interval
        away = {name: abs(value - score) for name, value in self.baselines.items() if low <= value <= high}
        if away or not self.baselines:
            return min(away, key=away.__getitem__, default="")
        name, worst = next(iter(self.baselines.items()))
        return name if (score > worst if lower_is_better(self.metric) else score < worst) else ""

    def rank(self, entry: Entry) -> str:
        """1 + how many are better by more than the interval of the difference; `=` where that ties with another.

        The intervals hold for all pairs of the table at once.
        """
        if entry.score is None:
            return ""
        return rank_among(self.pairs, entry)

    @cached_property
    def pairs(self) -> list[Pair[Entry]]:
        """All pairs of entries with scores, and their differences as ranks go by them."""
        scored = [entry for entry in self.entries if entry.score is not None]
        return [(a, b, self.difference(a, b, models=len(scored))) for a, b in combinations(scored, 2)]

    def difference(self, a: Entry, b: Entry, models: int = 2) -> Difference:
        """a's score less b's with its 95 % interval. Both need scores.

        By drawing test examples anew, the same for both, where the records tell of each; else put together from the
        two scores' intervals (Newcombe 1998). Seeds widen it. models: among how many the two were picked, see
        `stats.range_quantile`.
        """
        assert a.score is not None
        assert b.score is not None
        value, low, high = a.score - b.score, -inf, inf
        paired = False
        if a.interval is None or b.interval is None:
            pass  # of one test item, whose score says nothing of others
        elif a.bootstrap_scores is not None and b.bootstrap_scores is not None:
            low, high = np.percentile(a.bootstrap_scores - b.bootstrap_scores, [2.5, 97.5]).tolist()
            paired = True
        else:
            low = value - hypot(a.score - a.interval[0], b.interval[1] - b.score)
            high = value + hypot(a.interval[1] - a.score, b.score - b.interval[0])
        seeds = seed_margin((e.scores for e in self.entries), len(a.scores), len(b.scores), models=models)
        wider = range_quantile(models) / Z95
        interval = value - hypot(wider * (value - low), seeds), value + hypot(wider * (high - value), seeds)
        return Difference(value, interval, paired, lower_is_better(self.metric))

    def ratio(self, entry: Entry, name: str) -> float | None:
        """The entry's figure of the step profile over that of softmax."""
        own = entry.profiled(name)
        base = self.reference.profiled(name) if self.reference else None
        return own / base if own is not None and base else None


def rank_among(pairs: Iterable[Pair[Any]], one: object) -> str:
    """The rank of one of those that were compared: 1 + how many are better, `=` where it ties."""
    verdicts = [d.verdict if a is one else -d.verdict for a, b, d in pairs if one is a or one is b]
    return f"{1 + verdicts.count(-1)}{'=' if 0 in verdicts else ''}"


def usual_margin(pairs: Sequence[Pair[Any]]) -> float | None:
    """Median half-width of the differences' intervals: about what it takes to be told apart. None without any."""
    return median((d.interval[1] - d.interval[0]) / 2 for _, _, d in pairs) if pairs else None


def build_tables(records: Iterable[Record]) -> list[Table]:
    """Group records into tables of entries; of several records of one seed the latest counts."""
    current = of_latest_definitions(of_latest_protocols(records), lambda r: (_table_key(r), _entry_key(r)))
    latest = {(_table_key(r), _entry_key(r), r.config.seed): r for r in current}
    ordered = [latest[key] for key in sorted(latest)]
    tables = []
    for _, group in groupby(ordered, key=_table_key):
        entries = [Entry(tuple(rs)) for _, rs in groupby(group, key=_entry_key)]
        tables.append(Table(tuple(sorted(entries, key=_best_first))))
    return tables


def _best_first(entry: Entry) -> tuple[bool, float, tuple[str | float, ...]]:
    sign = 1 if entry.metric and lower_is_better(entry.metric) else -1
    return entry.score is None, sign * (entry.score or 0.0), by_name(entry.label)


def _table_key(r: Record) -> tuple[str | int, ...]:
    c, d = r.config, r.data
    return c.task, d.task_version, d.dataset, c.protocol, c.changed, c.device, r.machine.label, d.fingerprint


def _entry_key(r: Record) -> tuple[str, str]:
    return r.config.model_name, r.config.attention.changed
