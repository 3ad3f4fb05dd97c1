"""One model in one table: its seeds taken together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks import Metric

from .records import Record, StepProfile
from .stats import bootstrap_scores, wilson_interval

# Of the machine's processor time; on an idle shared machine others took up to 7.
DISTURBED_PERCENT = 10.0
# Between the quartiles of a measurement's steps, relative to their median.
UNSTEADY_PERCENT = 25.0


class CurvePoint(NamedTuple):
    """A score at a training step: mean, lowest and highest of the seeds."""

    step: int
    mean: float
    low: float
    high: float


def doubts_of(profiles: Sequence[StepProfile]) -> list[str]:
    """Why the median of their step times may mislead, in words."""
    apart = _median(profiles, "unsteady_percent") or 0.0
    steps = [f"timed in steps whose quartiles are {apart:.0f} % apart"] if apart > UNSTEADY_PERCENT else []
    others = {where: _median(profiles, f"other_{where.lower()}_percent") or 0.0 for where in ("CPU", "GPU")}
    return steps + [
        f"timed while others took {other:.0f} % of the {where}"
        for where, other in others.items()
        if other > DISTURBED_PERCENT
    ]


def _median(profiles: Sequence[StepProfile], name: str) -> float | None:
    known = [value for p in profiles if (value := getattr(p, name)) is not None]
    return median(known) if known else None


def by_name(label: str) -> tuple[str | float, ...]:
    """Key to sort labels by: `rfa (num_features=32)` before `rfa (num_features=128)`."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return tuple(float(part) if place % 2 else part for place, part in enumerate(parts))


@dataclass(frozen=True)
class Entry:
    """One model in one table: the records of its seeds."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """Of the seeds with a score, where there are any: a run that died early knows less of itself."""
        return (self.scored or self.records)[0]

    @property
    def scored(self) -> list[Record]:
        return [r for r in self.records if r.result is not None]

    @property
    def metric(self) -> Metric | None:
        """What the records are scored by; None where none has a score."""
        return next((r.result.metric for r in self.scored if r.result), None)

    @property
    def scores(self) -> list[float]:
        """Score on test of every seed, in the units of the metric: accuracy in percent, bits per byte, BLEU."""
        return [r.result.score for r in self.records if r.result]

    @property
    def score(self) -> float | None:
        """Mean of the seeds' scores."""
        return mean(self.scores) if self.scores else None

    @property
    def last_score(self) -> float | None:
        """Mean score on test of the last weights, whatever validation said of them."""
        values = [r.result.last_score for r in self.scored if r.result]
        return mean(values) if values else None

    @property
    def score_std(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean score for one test set: more seeds do not add test examples.

        Of accuracies Wilson's; of other scores the mean of the seeds' own.
        """
        if self.score is None:
            return None
        if self.metric == "accuracy":
            size = self.scored[0].data.test_size
            return wilson_interval(self.score * size / 100, size)
        found = [r.result.ci95 for r in self.scored if r.result and r.result.ci95]
        return (mean(low for low, _ in found), mean(high for _, high in found)) if found else None

    @cached_property
    def bootstrap_scores(self) -> NDArray[np.float64] | None:
        """The score on test sets drawn anew, see stats; None where not all records tell how each item was answered."""
        found = [r.result.items(r.data.test_size) for r in self.scored if r.result]
        items = [numbers for numbers in found if numbers is not None]
        return bootstrap_scores(items, self.metric) if self.metric and len(items) == len(found) else None

    @property
    def learning_curve(self) -> list[CurvePoint]:
        """The metric on validation at the steps that all seeds with a score have; where none has one, that all have."""
        curves = [dict(r.validation_curve) for r in self.scored or self.records if r.validation_curve]
        steps = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
        values = [(step, [c[step] for c in curves]) for step in steps]
        return [CurvePoint(step, mean(v), min(v), max(v)) for step, v in values]

    def profiled(self, name: str) -> float | None:
        """Median over seeds of a figure of the step profile."""
        return _median(self._profiles, name)

    @property
    def _profiles(self) -> list[StepProfile]:
        return [r.profile for r in self.records if r.profile]

    @property
    def doubts(self) -> list[str]:
        """See `doubts_of`."""
        return doubts_of(self._profiles)

    @property
    def label(self) -> str:
        return f"{self.first.config.model_name} ({self.settings})" if self.settings else self.first.config.model_name

    @property
    def settings(self) -> str:
        """The attention's settings where --set changed them."""
        return self.first.config.attention.changed

    @property
    def status(self) -> str:
        return next((r.status for r in self.records if r.status != "ok"), "ok")

    @property
    def reason(self) -> str:
        """Why not all of it is ok; of what is, what has to be known."""
        failures = (r.reason for r in self.records if r.status != "ok")
        return next(failures, next((r.caveat for r in self.records if r.caveat), ""))

    @property
    def mark(self) -> str:
        """`†` on a score with something to be known, which `reason` says."""
        return "†" if self.score is not None and self.reason else ""

    @property
    def star(self) -> str:
        """`*` on a step time that may mislead, as `doubts` say."""
        return "*" if self.doubts else ""
