"""Tables and groups -> charts for plotly.js, as plain data; colours and points are those of the pictures."""

from __future__ import annotations

import html
from collections.abc import Container
from itertools import cycle
from typing import Any

from .efficiency import Group
from .plots import GREY, Curve, colour_of, dashed
from .stats import axis_label, decimals, lower_is_better
from .tables import Table
from .tradeoff import nearby_guesses, published_beside, speed_limits, tradeoff_points

Chart = dict[str, Any]

DIAMETER = 46.0  # of the largest bubble, in pixels
SYMBOLS = ("circle", "square", "diamond", "triangle-down", "triangle-up", "pentagon", "cross", "star")


def _name(text: str) -> str:
    # plotly.js reads a subset of HTML in names.
    return html.escape(text, quote=False)


def _chart(title: str, traces: list[Any], x: str, y: str, *, lower: bool = False, log: bool = False) -> Chart:
    # D2: 1, 2 and 5 of every power of ten, as the pictures have them.
    axis = {"tickformat": ",", "automargin": True} | ({"type": "log", "dtick": "D2"} if log else {})
    layout = {
        "xaxis": {"title": {"text": x}, **axis},
        # Better is up in every picture.
        "yaxis": {"title": {"text": y}, **axis, **({"autorange": "reversed"} if lower else {})},
        "legend": {"orientation": "h", "y": -0.25},
        "margin": {"l": 60, "r": 20, "t": 35, "b": 40},
        "hovermode": "closest",
    }
    return {"title": title, "data": traces, "layout": layout}


def _level(name: str, y: float, dash: str) -> dict[str, Any]:
    """A line across the whole width of a chart, named in its legend."""
    line = {"dash": dash, "width": 1.5, "color": GREY}
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {**across, "line": line, "name": _name(name), "showlegend": True}


def _line(
    name: str, curve: Curve, colour: str, number: int, dash: bool, hollow: Container[float] = frozenset()
) -> Chart:
    """One curve of a chart; number: which symbol its points have; dash: see `plots.dashed`; hollow: points, by x."""
    symbol = SYMBOLS[number % len(SYMBOLS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [x for x, _ in curve],
        "y": [y for _, y in curve],
        "line": {"color": colour, "dash": "dash" if dash else "solid"},
        "marker": {"symbol": [f"{symbol}-open" if x in hollow else symbol for x, _ in curve], "size": 8},
    }


def bubble_chart(table: Table) -> Chart | None:
    """Score against speed, peak memory as the area; published figures hollow. None where nothing was measured."""
    points = tradeoff_points(table)
    if not points:
        return None
    labels, digits = [e.label for e in table.entries], decimals(table.metric)
    largest = max((p.memory for p in points if p.memory), default=1.0)
    shown_speed = "speed × %{x:.2f}" if table.reference else "%{x:.2f} steps per second"
    traces: list[Any] = []
    for p in points:
        memory = f"{p.memory:,.0f} MB" if p.memory else "memory unknown"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _name(p.entry.label + p.entry.star + p.entry.mark),
                "x": [p.speed],
                "y": [p.score],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [p.interval[1] - p.score],
                    "arrayminus": [p.score - p.interval[0]],
                },
                "marker": {
                    "color": colour_of(p.entry.label, labels),
                    "opacity": 0.65,
                    "size": DIAMETER * ((p.memory or 0.1 * largest) / largest) ** 0.5,
                },
                "hovertemplate": f"{_name(p.entry.label)}<br>%{{y:.{digits}f}}, {shown_speed}<br>{memory}"
                "<extra></extra>",
            }
        )
    softmax = table.reference.profiled("peak_memory_mb") if table.reference else None
    published = published_beside(table)
    if published:
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "published, by others on other machines",
                "x": [p.speed for p in published],
                "y": [p.accuracy for p in published],
                "text": [_name(f"{p.model} ({p.source})") for p in published],
                "marker": {
                    "color": "rgba(0,0,0,0)",
                    "line": {"color": "#999999", "width": 1.5},
                    "size": [DIAMETER * (p.memory * (softmax or largest) / largest) ** 0.5 for p in published],
                },
                "hovertemplate": "%{text}<br>%{y:.1f}, speed × %{x:.2f}<extra></extra>",
            }
        )
    speed = "training speed relative to softmax" if table.reference else "training speed, steps per second"
    title = "score, speed and memory (area)" + table.mark_note()
    chart = _chart(title, traces, speed, f"test {axis_label(table.metric)}", lower=lower_is_better(table.metric))
    if limits := speed_limits([*points, *published]):
        chart["layout"]["xaxis"]["range"] = limits
    guesses = zip(nearby_guesses(table, points).items(), cycle(("dot", "dashdot", "dash")))
    chart["layout"]["shapes"] = [_level(name, score, dash) for (name, score), dash in guesses]
    return chart


def learning_chart(table: Table) -> Chart | None:
    """The metric on validation against steps, a band from the lowest to the highest seed. None without a curve."""
    labels, entries = [e.label for e in table.entries], table.validated
    curves = table.learning_curves
    over = dashed(curves)
    traces: list[Any] = []
    for number, entry in enumerate(entries):
        colour, points = colour_of(entry.label, labels), entry.learning_curve
        steps = [p.step for p in points]
        if len(entry.records) > 1:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "x": steps + steps[::-1],
                    "y": [p.high for p in points] + [p.low for p in reversed(points)],
                    "fill": "toself",
                    "fillcolor": colour,
                    "opacity": 0.15,
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                }
            )
        traces.append(_line(_name(entry.label + entry.mark), curves[entry.label], colour, number, entry.label in over))
    if not traces:
        return None
    lower = lower_is_better(table.metric)
    title = "learning curves" + table.mark_note("†")
    return _chart(title, traces, "training step", f"validation {axis_label(table.metric)}", lower=lower)


def length_chart(group: Group, field: str, text: str) -> Chart | None:
    """A figure of the training step against length, on logarithmic axes, the fitted exponent in the legend."""
    curves = group.curves(field)
    over = dashed(curves)
    traces: list[Any] = []
    for number, (name, curve) in enumerate(curves.items()):
        exponent = group.exponent(name, field)
        slope = "" if exponent is None else f" ∝ n^{exponent:.2f}"
        sign = "†" * (name in group.caveats)
        hollow, colour = group.in_doubt(name, field), colour_of(name, group.labels)
        traces.append(_line(_name(name) + sign + slope, curve, colour, number, name in over, hollow))
    if not traces:
        return None
    title = text + group.mark_note(field)
    chart = _chart(title, traces, "sequence length, tokens", text, log=True)
    ticks = {"tickvals": group.lengths, "ticktext": [f"{n:,}" for n in group.lengths]}
    chart["layout"]["xaxis"] |= ticks
    return chart
