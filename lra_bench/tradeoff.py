"""Score against speed and memory: what pictures and the report draw of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .entry import Entry
from .published import PublishedPoint, published_on, published_points
from .tables import Table


@dataclass(frozen=True)
class TradeoffPoint:
    """speed: of training, relative to softmax where the table has it, else in steps a second; memory: MiB."""

    entry: Entry
    speed: float
    score: float
    interval: tuple[float, float]
    memory: float | None


def tradeoff_points(table: Table) -> list[TradeoffPoint]:
    """The entries that have a score and a step time."""
    base = table.reference.profiled("step_time_ms") if table.reference else None
    points = []
    for entry in table.entries:
        time = entry.profiled("step_time_ms")
        if entry.score is not None and entry.interval is not None and time:
            speed = base / time if base else 1e3 / time
            points.append(TradeoffPoint(entry, speed, entry.score, entry.interval, entry.profiled("peak_memory_mb")))
    return points


def speed_limits(points: Iterable[TradeoffPoint | PublishedPoint]) -> tuple[float, float] | None:
    """Ends of the axis where speeds are nearly the same, lest the picture be of noise; None where they are not."""
    speeds = [p.speed for p in points]
    slowest, fastest = min(speeds), max(speeds)
    middle = (slowest + fastest) / 2
    return (0.8 * middle, 1.2 * middle) if fastest < 1.25 * slowest else None


def nearby_guesses(table: Table, points: Sequence[TradeoffPoint]) -> dict[str, float]:
    """Of the guesses that need no model those no farther from the points' intervals than these reach."""
    low, high = min(p.interval[0] for p in points), max(p.interval[1] for p in points)
    return {name: value for name, value in table.baselines.items() if 2 * low - high <= value <= 2 * high - low}


def published_beside(table: Table) -> list[PublishedPoint]:
    """Published points that may be drawn beside the table's: of its family and data, with softmax to relate to."""
    task, family = table.first.config.task, table.first.config.family
    if table.reference is None or table.reference.profiled("peak_memory_mb") is None:
        return []
    return published_points(task, family) if table.first.data.dataset in published_on(task, family) else []
