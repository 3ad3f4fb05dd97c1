"""Records -> pictures."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

from tasks import Task
from tasks.files import atomic_path

from .entry import Entry
from .stats import axis_label, lower_is_better
from .tables import Table
from .tradeoff import nearby_guesses, published_beside, speed_limits, tradeoff_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers; a known model has the same one in every picture.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#666666", "#B8A800", "#7B3FA0", "#7A4B1E")
GREY = "#777777"
GUESS_DASHES = (":", "-.", (0, (1, 4)))
BUBBLE = 1500  # area of the largest, in points squared
MARKERS = "osD^vPX*"
KNOWN = "softmax sdpa rfa linformer performer reformer linear rfa-arccos rfa-gate rfa-gate-arccos".split()

Curve = Sequence[tuple[float, float]]  # points (x, y) from left to right


def write_plots(out: Path, tables: Iterable[Table]) -> list[Path]:
    """Three pictures per table, as PNG and SVG under `out`; returns the paths. Without a measurement, none."""
    written = []
    pictures = (("tradeoff", _tradeoff, "*†"), ("learning", _learning, "†"), ("step_time", _step_time, "*†"))
    for table in tables:
        for name, draw, signs in pictures:
            figure = new_figure(table.title + table.mark_note(signs))
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
    """The colour of one model among `labels`: a known one's is always the same, another's one that is free there."""
    if label in KNOWN:
        return COLOURS[KNOWN.index(label)]
    labels = set(labels)
    free = [colour for name, colour in zip(KNOWN, COLOURS, strict=True) if name not in labels][::-1] or COLOURS
    return free[sorted(labels.difference(KNOWN)).index(label) % len(free)]


def _colour(table: Table, entry: Entry) -> str:
    return colour_of(entry.label, [e.label for e in table.entries])


def dashed(curves: Mapping[str, Curve]) -> set[str]:
    """Names of the curves that lie on an earlier one as far as both go; drawn dashed, they leave it to be seen.

    Exact attentions learn alike to the last digit and need the same memory.
    """
    found: set[str] = set()
    for number, (name, curve) in enumerate(curves.items()):
        if any(_alike(curve, earlier) for earlier in islice(curves.values(), number)):
            found.add(name)
    return found


def _alike(curve: Curve, other: Curve) -> bool:
    heights = dict(other)
    shared = [(y, heights[x]) for x, y in curve if x in heights]
    return len(shared) > 1 and all(math.isclose(*pair, rel_tol=0.005) for pair in shared)


def style(axes: Axes) -> None:
    """What all pictures share."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend_beside(axes: Axes) -> None:
    """A legend right of the axes, where however many names hide nothing."""
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _tradeoff(axes: Axes, table: Table) -> bool:
    """Accuracy against speed, memory as the area of the bubble; published figures hollow, where the family has any."""
    base, points = table.reference, tradeoff_points(table)
    if not points:
        return False
    largest = max((p.memory for p in points if p.memory), default=None)
    # Large bubbles first, so that small ones lie on top of them.
    for p in sorted(points, key=lambda p: -(p.memory or 0.0)):
        colour, (low, high) = _colour(table, p.entry), p.interval
        axes.errorbar(p.speed, p.score, [[p.score - low], [high - p.score]], color=colour, capsize=3, linewidth=1.2)
        area = BUBBLE * p.memory / largest if p.memory and largest else 80
        axes.scatter(p.speed, p.score, area, color=colour, alpha=0.5, edgecolors=colour)
    lower = lower_is_better(table.metric)
    front = _pareto([(p.speed, p.score) for p in points], lower)
    if len(front) > 1:
        axes.plot(
            *zip(*front, strict=True), color="#555555", linestyle="--", linewidth=1, zorder=0, label="Pareto front"
        )
    # Names in a legend: labels beside the bubbles run into each other where models are alike.
    for p in points:
        size = f", {p.memory:,.0f} MB" if p.memory else ""
        axes.scatter(
            [],
            [],
            60,
            color=_colour(table, p.entry),
            alpha=0.7,
            label=f"{p.entry.label}{p.entry.star}{p.entry.mark}{size}",
        )
    softmax_memory = base.profiled("peak_memory_mb") if base else None
    published = published_beside(table)
    for other in published:
        where = other.speed, other.accuracy
        area = BUBBLE * other.memory * (softmax_memory or 0.0) / (largest or 1.0)
        axes.scatter(*where, area, facecolors="none", edgecolors="#999999", linewidths=0.8)
        axes.annotate(f"{other.model} ({other.source})", where, fontsize=5, color=GREY, ha="center")
    guesses = nearby_guesses(table, points)
    # Named in the legend: at the lines, names run into each other where guesses are alike.
    for (name, value), dashes in zip(guesses.items(), cycle(GUESS_DASHES)):
        axes.axhline(value, color=GREY, linestyle=dashes, linewidth=1.2, zorder=0, label=name)
    _legend_beside(axes)
    style(axes)
    axes.margins(x=0.15, y=0.2)
    if limits := speed_limits([*points, *published]):
        axes.set_xlim(limits)
    axes.set_xlabel("training speed relative to softmax" if base else "training speed, steps per second")
    # Better is up in every picture.
    if lower:
        axes.invert_yaxis()
    axes.set_ylabel(f"test {axis_label(table.metric)}{', lower (here up) is better' * lower}")
    parts = ["bars: 95 % interval"]
    if largest:
        parts.insert(0, "area: peak memory")
    if guesses:
        parts.append("lines: guesses without a model")
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
    entries = table.validated
    over = dashed(table.learning_curves)
    for number, entry in enumerate(entries):
        colour, points = _colour(table, entry), entry.learning_curve
        steps = [p.step for p in points]
        axes.plot(
            steps,
            [p.mean for p in points],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            markerfacecolor="none",
            linewidth=1.6,
            linestyle="--" if entry.label in over else "-",
            color=colour,
            label=entry.label + entry.mark,
        )
        if len(entry.records) > 1:
            axes.fill_between(steps, [p.low for p in points], [p.high for p in points], color=colour, alpha=0.15)
    style(axes)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel("training step")
    axes.set_ylabel(f"validation {axis_label(table.metric)}{' (lower is better)' * lower_is_better(table.metric)}")
    if entries:
        _legend_beside(axes)
    return bool(entries)


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
            f"{time:,.1f} ms{entry.star}",
            (time + spread, row),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    style(axes)
    axes.set_yticks(range(len(timed)), [entry.label + entry.mark for _, entry in timed])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_xlabel(f"training step of {table.first.config.batch_label}, ms")
    return True
