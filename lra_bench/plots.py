"""Records -> pictures."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from tasks import Task
from tasks.files import atomic_path

from .published import published_points
from .stats import axis_label, lower_is_better
from .tables import Entry, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; a known model has the same one in every picture.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#666666", "#B8A800", "#7B3FA0")
BUBBLE = 1500  # area of the largest, in points squared
MARKERS = "osD^vPX*"
KNOWN = ("softmax", "sdpa", "rfa", "linformer", "performer", "reformer", "linear", "rfa-arccos", "rfa-gate")


def write_plots(out: Path, tables: Iterable[Table]) -> list[Path]:
    """Three pictures per table, as PNG and SVG under `out`; returns the paths. Without a measurement, none."""
    written = []
    for table in tables:
        for name, draw in (("tradeoff", _tradeoff), ("learning", _learning), ("step_time", _step_time)):
            figure = new_figure(table.title)
            if draw(figure.subplots(), table):
                written += save(figure, out / f"{name}-{table.slug}")
    return written


def save(figure: Figure, stem: Path) -> list[Path]:
    """`stem`.png and `stem`.svg, the same bytes whenever the picture is the same; returns their paths."""
    import matplotlib

    # Text stays text in an SVG, and its ids do not change from run to run.
    rc = {"svg.hashsalt": "lra-bench", "svg.fonttype": "none"}
    paths = []
    for form in ("png", "svg"):
        path = stem.with_name(f"{stem.name}.{form}")
        with atomic_path(path) as temporary, matplotlib.rc_context(rc):
            figure.savefig(temporary, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
        paths.append(path)
    return paths


def write_length_histogram(path: Path, task: Task, max_len: int) -> Path:
    """Lengths of all sequences of a task, with the protocol's maximum marked; returns `path`."""
    figure = new_figure(f"{task.name}: lengths in {task.dataset}")
    axes = figure.subplots()
    lengths = [
        length for split in (task.train, task.validation, task.test) for s in split.inputs for length in s.lengths
    ]
    axes.hist(lengths, bins=80, color=COLOURS[0])
    axes.axvline(max_len, color=COLOURS[4], linewidth=1.5, label=f"cut at {max_len:,} tokens")
    style(axes)
    axes.set_xlabel("tokens")
    axes.set_ylabel("sequences")
    axes.legend(frameon=False, fontsize=9)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return path


def new_figure(title: str, width: float = 7.5) -> Figure:
    """An empty figure with a title, `width` inches wide."""
    # Without pyplot there is no global state and no display to look for.
    os.environ.setdefault("MPLCONFIGDIR", str(Path(os.environ.get("TMPDIR", "/tmp")) / "matplotlib"))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, 4.8), layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, int(12.7 * width))), fontsize=10)
    return figure


def colour_of(label: str, labels: Iterable[str]) -> str:
    """The colour of one model among `labels`; a known model's is always the same."""
    if label in KNOWN:
        return COLOURS[KNOWN.index(label)]
    others = sorted(other for other in labels if other not in KNOWN)
    return COLOURS[(len(KNOWN) - 1 - others.index(label)) % len(COLOURS)]


def _colour(table: Table, entry: Entry) -> str:
    return colour_of(entry.label, [e.label for e in table.entries])


def style(axes: Axes) -> None:
    """What all pictures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _tradeoff(axes: Axes, table: Table) -> bool:
    """Accuracy against speed, memory as the area of the bubble; published figures hollow, where the family has any."""
    base = table.reference
    unit = 1e3 / (base.profiled("step_time_ms") or 1.0) if base and base.profiled("step_time_ms") else 1.0
    points = []
    for entry in table.entries:
        time = entry.profiled("step_time_ms")
        if entry.score is not None and entry.interval is not None and time:
            speed = 1e3 / time / unit
            points.append((entry, speed, entry.score, entry.interval, entry.profiled("peak_memory_mb")))
    if not points:
        return False
    largest = max((memory for *_, memory in points if memory), default=None)
    # Large bubbles first, so that small ones lie on top of them.
    for entry, speed, score, interval, memory in sorted(points, key=lambda p: -(p[4] or 0.0)):
        colour = _colour(table, entry)
        axes.errorbar(
            speed,
            score,
            [[score - interval[0]], [interval[1] - score]],
            color=colour,
            capsize=3,
            linewidth=1.2,
        )
        area = BUBBLE * memory / largest if memory and largest else 80
        axes.scatter(speed, score, area, color=colour, alpha=0.5, edgecolors=colour)
    lower = lower_is_better(table.metric)
    front = _pareto([(speed, score) for _, speed, score, *_ in points], lower)
    axes.plot(*zip(*front, strict=True), color="#555555", linestyle="--", linewidth=1, zorder=0, label="Pareto front")
    # Names in a legend: labels beside the bubbles run into each other where models are alike.
    for entry, *_, memory in points:
        size = f", {memory:,.0f} MB" if memory else ""
        axes.scatter([], [], 60, color=_colour(table, entry), alpha=0.7, label=f"{entry.label}{size}")
    softmax_memory = base.profiled("peak_memory_mb") if base else None
    if base and largest and softmax_memory and not table.first.data.dataset.endswith("-synthetic"):
        for p in published_points(table.first.config.task, table.first.config.family):
            area = BUBBLE * p.memory * softmax_memory / largest
            axes.scatter(p.speed, p.accuracy, area, facecolors="none", edgecolors="#999999", linewidths=0.8)
            axes.annotate(f"{p.model} ({p.source})", (p.speed, p.accuracy), fontsize=5, color="#777777", ha="center")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    style(axes)
    axes.margins(x=0.15, y=0.2)
    axes.set_xlabel("training speed relative to softmax" if base else "training speed, steps per second")
    # Better is up in every picture.
    if lower:
        axes.invert_yaxis()
    axes.set_ylabel(f"test {axis_label(table.metric)}{', lower (here up) is better' * lower}")
    parts = ["bars: 95 % interval"]
    if largest:
        parts.insert(0, "area of a bubble: peak memory of a training step")
    axes.set_title("; ".join(parts), fontsize=9, color="#555555")
    return True


def _pareto(points: Iterable[tuple[float, float]], lower: bool = False) -> list[tuple[float, float]]:
    """The points (speed, score) than which none is both faster and better, slowest first; lower: scores' better way."""
    front: list[tuple[float, float]] = []
    sign = -1 if lower else 1
    for point in sorted(points, key=lambda p: (p[0], sign * p[1]), reverse=True):
        if not front or sign * point[1] > sign * front[-1][1]:
            front.append(point)
    return front[::-1]


def _learning(axes: Axes, table: Table) -> bool:
    """The metric on validation against steps: mean over seeds, band from the lowest to the highest."""
    drawn = False
    for number, entry in enumerate(sorted(table.entries, key=lambda e: e.label, reverse=True)):
        curves = [dict(r.validation_curve) for r in entry.records if r.validation_curve]
        if not curves:
            continue
        steps = sorted(set.intersection(*(set(c) for c in curves)))
        values = [[c[s] for c in curves] for s in steps]
        colour = _colour(table, entry)
        # Different widths and markers: exact attentions learn alike to the last digit, and one would hide the other.
        axes.plot(
            steps,
            [mean(v) for v in values],
            marker=MARKERS[number % len(MARKERS)],
            markersize=9 - 1.5 * (number % 4),
            markerfacecolor="none",
            linewidth=4.5 - 1.2 * (number % 4),
            alpha=0.8,
            color=colour,
            label=entry.label,
        )
        if len(curves) > 1:
            axes.fill_between(steps, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
        drawn = True
    style(axes)
    axes.set_xlim(left=0)
    axes.set_xlabel("training step")
    axes.set_ylabel(f"validation {axis_label(table.metric)}{' (lower is better)' * lower_is_better(table.metric)}")
    if drawn:
        axes.legend(frameon=False, fontsize=9, loc="best")
    return drawn


def _step_time(axes: Axes, table: Table) -> bool:
    """Time of a training step by model, shortest first, with its interquartile range."""
    timed = [(t, e) for e in table.entries if (t := e.profiled("step_time_ms"))]
    if not timed:
        return False
    timed.sort(key=lambda pair: pair[0])
    for row, (time, entry) in enumerate(timed):
        spread = (entry.profiled("step_time_iqr_ms") or 0.0) / 2
        axes.barh(row, time, xerr=spread, color=_colour(table, entry), height=0.6, capsize=3)
        axes.annotate(
            f"{time:,.0f} ms", (time + spread, row), (6, 0), textcoords="offset points", va="center", fontsize=9
        )
    style(axes)
    axes.set_yticks(range(len(timed)), [entry.label for _, entry in timed])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    config = table.first.config
    axes.set_xlabel(f"training step of {config.train.batch_size} × {config.data.max_len:,} tokens, ms")
    return True
