"""Tables -> CSV and Markdown, with published figures in blocks of their own."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from tasks.files import atomic_path

from .published import read_published
from .stats import axis_label, decimals, lower_is_better
from .tables import Entry, Table

FAIR_PARAMS_RATIO = 1.10  # the Long Range Arena's rule for a fair entry

COLUMNS = (
    "task dataset protocol overrides model settings rank seeds metric score score_std score_ci95 score_last"
    " accuracy accuracy_std accuracy_ci95 accuracy_last plateau test_size step_time_ms steps_per_sec tokens_per_sec"
    " peak_memory_mb speed_vs_softmax memory_vs_softmax params params_ratio flops_per_step train_time_s steps status"
    " reason device threads precision compiled torch python commit fingerprint"
).split()

SCORE_PARTS = ("", "_std", "_ci95", "_last")


def rows(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """The tables as flat rows with the columns COLUMNS, baselines last; None where nothing was measured."""
    flat = []
    for table in tables:
        own = [_row(table, entry) for entry in table.entries]
        shared = {key: own[0][key] for key in ("task", "dataset", "protocol", "overrides", "test_size", "fingerprint")}
        guesses = [
            {
                **dict.fromkeys(COLUMNS),
                **shared,
                "model": name,
                "metric": table.metric,
                "score": _round(value, 4),
                "accuracy": _round(value, 2) if table.metric == "accuracy" else None,
                "status": "baseline",
            }
            for name, value in table.baselines.items()
        ]
        flat += own + guesses
    return flat


def _row(table: Table, entry: Entry) -> dict[str, Any]:
    r, score = entry.first, _scores(entry)
    accuracy = score if entry.metric == "accuracy" else {}
    step_time = entry.profiled("step_time_ms")
    slower = table.ratio(entry, "step_time_ms")
    return {
        "task": r.config.task,
        "dataset": r.data.dataset,
        "protocol": r.config.protocol,
        "overrides": r.config.overrides,
        "model": r.config.model_name,
        "settings": entry.settings,
        "rank": table.rank(entry),
        "seeds": len(entry.records),
        "metric": entry.metric,
        **{f"score{part}": score[part] for part in SCORE_PARTS},
        **{f"accuracy{part}": accuracy.get(part) for part in SCORE_PARTS},
        "plateau": table.plateau(entry),
        "test_size": r.data.test_size,
        "step_time_ms": _round(step_time, 2),
        "steps_per_sec": _round(1e3 / step_time, 3) if step_time else None,
        "tokens_per_sec": _round(entry.profiled("tokens_per_sec"), 0),
        "peak_memory_mb": _round(entry.profiled("peak_memory_mb"), 1),
        "speed_vs_softmax": _round(1 / slower, 2) if slower else None,
        "memory_vs_softmax": _round(table.ratio(entry, "peak_memory_mb"), 3),
        "params": r.params,
        "params_ratio": _round(r.params_ratio, 4),
        "flops_per_step": r.flops_per_step,
        "train_time_s": _round(mean(x.train_time_s for x in entry.records), 1),
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
    }


def _scores(entry: Entry) -> dict[str, Any]:
    """Mean, deviation, interval and last weights' score under the endings of their columns."""
    digits = 2 if entry.metric == "accuracy" else 4
    low_high = entry.interval
    return {
        "": _round(entry.score, digits),
        "_std": _round(entry.score_std, digits),
        "_ci95": f"[{low_high[0]:.{digits}f}, {low_high[1]:.{digits}f}]" if low_high else None,
        "_last": _round(entry.last_score, digits),
    }


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


MARKDOWN = {
    "rank": "rank",
    "model": "model",
    "score": "",  # the metric's own name
    "interval": "95 % interval",
    "step_time_ms": "step ms",
    "speed_vs_softmax": "speed ×",
    "peak_memory_mb": "memory MB",
    "memory_vs_softmax": "memory ×",
    "params": "params",
    "train_time_s": "train s",
    "seeds": "seeds",
    "status": "status",
}


def markdown(tables: Iterable[Table]) -> str:
    """All tables as Markdown, published figures in blocks of their own below those they may be read beside."""
    return "\n".join(_markdown_table(table) + _published_block(table) for table in tables)


def _markdown_table(table: Table) -> str:
    body, digits = [], decimals(table.metric)
    for entry in table.entries:
        row = _row(table, entry)
        low_high = entry.interval
        over = " (over 110 % of softmax)" if (row["params_ratio"] or 0) > FAIR_PARAMS_RATIO else ""
        row |= {
            "model": entry.label,
            "score": _text(entry.score, f".{digits}f")
            + (f" ± {entry.score_std:.{digits}f}" if entry.score_std else ""),
            "interval": f"{low_high[0]:.{digits}f} to {low_high[1]:.{digits}f}" if low_high else "",
            "status": entry.status + (f": {entry.reason}" if entry.reason else ""),
            "step_time_ms": _text(row["step_time_ms"], ".1f"),
            "peak_memory_mb": _text(row["peak_memory_mb"], ",.0f"),
            "speed_vs_softmax": _text(row["speed_vs_softmax"], ".2f"),
            "memory_vs_softmax": _text(row["memory_vs_softmax"], ".2f"),
            "params": _text(row["params"], ",") + over,
            "train_time_s": _text(row["train_time_s"], ".0f"),
        }
        if row["plateau"]:
            row["status"] += f", on the plateau of {row['plateau']}"
        body.append([str(row[key]) for key in MARKDOWN])
    for name, value in reversed(table.baselines.items()):
        guess = {"model": name, "score": f"{value:.{digits}f}", "status": "baseline"}
        body.append([guess.get(key, "") for key in MARKDOWN])
    r = table.first
    commits = sorted({_row(table, e)["commit"] for e in table.entries})
    compiled = ", compiled," if r.machine.compiled else ""
    lower = " Lower is better." if lower_is_better(table.metric) else ""
    note = (
        f"{r.data.test_size:,} test examples; steps of {r.config.train.batch_size} × {r.config.data.max_len:,} tokens"
        f" in {r.machine.precision}{compiled} on {r.machine.threads} threads of torch"
        f" {r.machine.torch}; commit {', '.join(commits)}. Speed and memory × are relative to softmax."
        f" A rank with = is a tie: the difference is within its 95 % interval.{lower}"
    )
    if r.data.dataset.endswith("-synthetic"):
        note += " Synthetic data: not comparable with any published figure."
    header = list((MARKDOWN | {"score": axis_label(table.metric)}).values())
    return f"## {table.title}\n\n{align(header, body)}\n\n{note}\n"


def _published_block(table: Table) -> str:
    r = table.first
    if r.data.dataset.endswith("-synthetic"):
        return ""
    found = [
        row
        for row in read_published()
        if row["task"].lower() == r.config.task
        and row["family"] == r.config.family
        and row["metric"] == "test_accuracy_pct"
    ]
    if not found:
        return ""
    found.sort(key=lambda row: (row["source"], row["model"]))
    body = [[x["model"], x["value"] + (f" ± {x['std']}" if x["std"] else ""), x["source"]] for x in found]
    return (
        f"\n### Published for {r.config.task}, family {r.config.family}\n\n"
        "Copied from their sources, measured by others on other machines, never ranked with the rows above"
        f" (protocol {r.config.protocol}).\n\n{align(['model', 'accuracy %', 'source'], body)}\n"
    )


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def align(header: list[str], body: list[list[str]]) -> str:
    """A Markdown table whose columns also line up as plain text."""
    cells = [[c.replace("|", "\\|").replace("\n", " ") for c in line] for line in [header, *body]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def write_markdown(path: Path, tables: Iterable[Table]) -> str:
    """leaderboard.md; returns its text."""
    text = "# Leaderboard\n\n" + markdown(tables)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text
