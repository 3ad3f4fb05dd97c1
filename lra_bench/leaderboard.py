"""Tables -> rows and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from tasks.files import atomic_path

from .entry import Entry
from .tables import Table

COLUMNS = (
    "task dataset protocol overrides model settings rank seeds metric score score_std score_ci95 score_last"
    " accuracy accuracy_std accuracy_ci95 accuracy_last plateau test_size step_time_ms steps_per_sec tokens_per_sec"
    " peak_memory_mb speed_vs_softmax memory_vs_softmax params params_ratio flops_per_step train_time_s steps status"
    " reason device threads precision compiled torch python commit fingerprint other_cpu_percent other_gpu_percent"
    " task_version step_time_iqr_ms"
).split()

SCORE_PARTS = ("", "_std", "_ci95", "_last")


def rows(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """The tables as flat rows with the columns COLUMNS, baselines last; None where nothing was measured."""
    flat = []
    for table in tables:
        own = [row_of(table, entry) for entry in table.entries]
        of_the_table = "task dataset protocol overrides test_size fingerprint task_version".split()
        shared = {key: own[0][key] for key in of_the_table}
        guesses = [
            {
                **dict.fromkeys(COLUMNS),
                **shared,
                "model": name,
                "metric": table.metric,
                "score": _round(value, 4),
                "accuracy": _round(value, 4) if table.metric == "accuracy" else None,
                "status": "baseline",
            }
            for name, value in table.baselines.items()
        ]
        flat += own + guesses
    return flat


def row_of(table: Table, entry: Entry) -> dict[str, Any]:
    """One entry with the columns COLUMNS."""
    r, score = entry.first, _scores(entry)
    accuracy = score if entry.metric == "accuracy" else {}
    step_time = entry.profiled("step_time_ms")
    slower = table.ratio(entry, "step_time_ms")
    return {
        "task": r.config.task,
        "dataset": r.data.dataset,
        "protocol": r.config.protocol,
        "overrides": r.config.changed,
        "model": r.config.model_name,
        "settings": entry.settings,
        "rank": table.rank(entry),
        "seeds": len(entry.records),
        "metric": entry.metric,
        **{f"score{part}": score[part] for part in SCORE_PARTS},
        **{f"accuracy{part}": accuracy.get(part) for part in SCORE_PARTS},
        "plateau": table.plateau(entry),
        "test_size": r.data.test_size,
        "step_time_ms": _round(step_time, 3),
        "steps_per_sec": _round(1e3 / step_time, 3) if step_time else None,
        "tokens_per_sec": _round(entry.profiled("tokens_per_sec"), 0),
        "peak_memory_mb": _round(entry.profiled("peak_memory_mb"), 3),
        "speed_vs_softmax": _round(1 / slower, 3) if slower else None,
        "memory_vs_softmax": _round(table.ratio(entry, "peak_memory_mb"), 3),
        "params": r.params,
        "params_ratio": _round(r.params_ratio, 4),
        "flops_per_step": r.flops_per_step,
        "train_time_s": _round(mean(x.train_time_s for x in entry.scored or entry.records), 1),
        "steps": r.steps,
        "status": entry.status,
        "reason": entry.reason,
        "device": r.machine.device,
        "threads": r.machine.threads,
        "precision": r.machine.precision,
        "compiled": r.machine.compiled,
        "torch": r.machine.torch,
        "python": r.machine.python,
        "commit": r.code.short,
        "fingerprint": r.data.fingerprint[:12],
        **{name: _round(entry.profiled(name), 1) for name in ("other_cpu_percent", "other_gpu_percent")},
        "task_version": r.data.task_version,
        "step_time_iqr_ms": _round(entry.profiled("step_time_iqr_ms"), 3),
    }


def _scores(entry: Entry) -> dict[str, Any]:
    """Mean, deviation, interval and last weights' score under the endings of their columns."""
    low_high = entry.interval
    return {
        "": _round(entry.score, 4),
        "_std": _round(entry.score_std, 4),
        "_ci95": f"[{low_high[0]:.4f}, {low_high[1]:.4f}]" if low_high else None,
        "_last": _round(entry.last_score, 4),
    }


# Tables for reading round these again, so that they keep more digits than any shows.
def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def safe_cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def write_csv(path: Path, tables: Iterable[Table]) -> None:
    """leaderboard.csv: one line per entry, empty cells where nothing was measured."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: safe_cell(v) for k, v in row.items()} for row in rows(tables))
