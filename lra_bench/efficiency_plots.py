"""Profile records -> step time and memory against length, on logarithmic axes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .efficiency import Group
from .plots import MARKERS, colour_of, dashed, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_efficiency_plots(out: Path, groups: Iterable[Group]) -> list[Path]:
    """One picture per group, PNG and SVG; returns the paths. A group in which nothing was measured gives none."""
    from matplotlib.ticker import LogLocator

    written = []
    for group in groups:
        if not any(r.profile for r in group.records if r.mode == "train"):
            continue
        figure = new_figure(group.title + group.mark_note("step_time_ms"), width=11.0)
        panels = (
            ("step_time_ms", "training step, ms", "time"),
            ("peak_memory_mb", "peak memory of a training step, MB", "memory"),
        )
        for axes, (field, text, what) in zip(figure.subplots(1, 2), panels, strict=True):
            _draw_curves(axes, group, field, what)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(group.lengths, [f"{n:,}" for n in group.lengths], fontsize=8)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # few lengths may span no power of ten
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.minorticks_off()
            axes.set_xlabel("sequence length, tokens")
            axes.set_ylabel(text)
            axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))
            style(axes)
        c = group.first.config
        rest = hashlib.sha256(f"{group.measured_on} {c.train.compile}".encode()).hexdigest()[:6]
        name = re.sub(r"[^A-Za-z0-9._-]+", "_", f"efficiency-{c.task}-{c.protocol}-{c.device}-{rest}")
        written += save(figure, out / name)
    return written


def _draw_curves(axes: Axes, group: Group, field: str, what: str) -> None:
    """A figure of every model against length, `what` in words; hollow where it is a time that may mislead."""
    curves = group.curves(field)
    over = dashed(curves)
    for number, (name, curve) in enumerate(curves.items()):
        exponent = group.exponent(name, field)
        slope = "" if exponent is None else f", {what} ∝ $n^{{{exponent:.2f}}}$"
        cells = (group.find(name, "train", n) for n in group.lengths)
        exhausted = [r.config.data.max_len for r in cells if r and r.status == "oom"]
        end = f", oom at {exhausted[0]:,}" if exhausted else ""
        look: dict[str, Any] = {
            "color": colour_of(name, group.labels),
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 5,
        }
        axes.plot(
            *zip(*curve, strict=True),
            **look,
            linewidth=1.6,
            linestyle="--" if name in over else "-",
            label=name.replace("$", r"\$") + "†" * (name in group.caveats) + slope + end,
        )
        if doubtful := [(n, value) for n, value in curve if n in group.in_doubt(name, field)]:
            axes.plot(*zip(*doubtful, strict=True), **look, linestyle="none", markerfacecolor="white")
