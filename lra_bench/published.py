"""Figures printed by others, from results/published, never ranked with measured ones."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite

from . import ROOT

PUBLISHED = ROOT / "results" / "published"
# The data sets, by our names, that figures of a task are of. The generator of ListOps is the release's own.
DATASETS = {"text": {"imdb"}, "listops": {"listops-release", "listops-generated"}, "retrieval": {"aan"}}


@cache
def read_published() -> list[dict[str, str]]:
    """All rows: model, task, metric, value, std, family, protocol, source."""
    rows = []
    for path in sorted(PUBLISHED.glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    return rows


def published_accuracies(task: str, family: str) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of a task and family that print a test accuracy, by source and model, in that order."""
    kind = (task, family, "test_accuracy_pct")
    found = [row for row in read_published() if (row["task"].lower(), row["family"], row["metric"]) == kind]
    return {(row["source"], row["model"]): row for row in sorted(found, key=lambda r: (r["source"], r["model"]))}


def published_on(task: str, family: str) -> set[str]:
    """The data sets that the accuracies of a task and family are of, which alone may be read beside them."""
    return DATASETS.get(task, set()) if published_accuracies(task, family) else set()


def published_on_all(tasks: Sequence[str], family: str) -> list[tuple[str, str, list[str]]]:
    """Source, model and accuracies, as printed, of those that print one on every task."""
    found = [published_accuracies(task, family) for task in tasks]
    complete = [key for key in found[0] if all(key in rows and _is_number(rows[key]["value"]) for rows in found)]
    return [(*key, [rows[key]["value"] for rows in found]) for key in complete]


def _is_number(value: str) -> bool:
    try:
        return isfinite(float(value))
    except ValueError:  # FAIL or NA
        return False


@dataclass(frozen=True)
class PublishedPoint:
    """A model's accuracy in percent, and its training speed and memory relative to the same source's transformer."""

    model: str
    source: str
    accuracy: float
    speed: float
    memory: float


def published_points(task: str, family: str) -> list[PublishedPoint]:
    """What sources of a family print in full: accuracy, hours and GB of a model and of their transformer."""
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for row in read_published():
        if row["task"].lower() == task and row["family"] == family and _is_number(row["value"]):
            figures = tables.setdefault(row["protocol"], {}).setdefault(row["model"], {})
            figures[row["metric"]] = float(row["value"])
    points = []
    for protocol, table in tables.items():
        base = table.get("Transformer", {})
        for model, figures in table.items():
            if {"test_accuracy_pct", "train_hours", "peak_memory_GB"} <= figures.keys() & base.keys():
                speed = base["train_hours"] / figures["train_hours"]
                memory = figures["peak_memory_GB"] / base["peak_memory_GB"]
                source = protocol.partition(" ")[0]
                points.append(PublishedPoint(model, source, figures["test_accuracy_pct"], speed, memory))
    return points


def published_length_ratios(lengths: Sequence[int]) -> list[tuple[str, list[str]]]:
    """Model and "speed / memory" at each length, relative to the transformer, from the Long Range Arena's Table 2.

    Speeds as printed; memory is the quotient of the printed GB.
    """
    found = {
        (row["model"], row["task"], row["metric"]): row["value"]
        for row in read_published()
        if row["source"].startswith("LRA paper Table 2")
    }
    table = []
    for model in dict.fromkeys(model for model, _, _ in found):
        cells = []
        for n in lengths:
            task = f"Text@{n // 1024}K"
            speed = found.get((model, task, "speed_relative_to_transformer"), "")
            own, base = (found.get((m, task, "peak_memory_GB_per_device")) for m in (model, "Transformer"))
            cells.append(f"{speed} / {float(own) / float(base):.2f}" if own and base else speed)
        table.append((model, cells))
    return table
