"""Records -> tables. Only like is ranked with like: one table per task, data, protocol and device."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from tasks.files import atomic_path

from . import ROOT
from .records import Record
from .stats import wilson_interval

PUBLISHED = ROOT / "results" / "published"
FAIR_PARAMS_RATIO = 1.10  # the Long Range Arena's rule for a fair entry

COLUMNS = (
    "task dataset protocol overrides model settings rank seeds accuracy accuracy_std accuracy_ci95 accuracy_last"
    " test_size step_time_ms steps_per_sec tokens_per_sec peak_memory_mb speed_vs_softmax memory_vs_softmax params"
    " params_ratio flops_per_step train_time_s steps status reason device threads precision torch python commit"
    " fingerprint"
).split()


@dataclass(frozen=True)
class Entry:
    """One model in one table: the records of its seeds."""

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def scored(self) -> list[Record]:
        return [r for r in self.records if r.result is not None]

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy in percent."""
        values = [r.result.accuracy for r in self.scored if r.result]
        return mean(values) if values else None

    @property
    def last_accuracy(self) -> float | None:
        """Mean test accuracy of the last weights, whatever validation said of them."""
        values = [r.result.last_accuracy for r in self.scored if r.result]
        return mean(values) if values else None

    @property
    def accuracy_std(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        values = [r.result.accuracy for r in self.scored if r.result]
        return stdev(values) if len(values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson interval of the mean accuracy for one test set: more seeds do not add test examples."""
        if self.accuracy is None:
            return None
        size = self.scored[0].data.test_size
        return wilson_interval(self.accuracy * size / 100, size)

    def profiled(self, name: str) -> float | None:
        """Median over seeds of a figure of the step profile."""
        values = [getattr(r.profile, name) for r in self.records if r.profile]
        known = [v for v in values if v is not None]
        return median(known) if known else None

    @property
    def label(self) -> str:
        return f"{self.first.config.model_name} ({self.settings})" if self.settings else self.first.config.model_name

    @property
    def settings(self) -> str:
        """The attention's settings where they differ from those of the model's name."""
        return _changed_settings(self.first)

    @property
    def status(self) -> str:
        return next((r.status for r in self.records if r.status != "ok"), "ok")

    @property
    def reason(self) -> str:
        return next((r.reason for r in self.records if r.status != "ok"), "")


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
        changed = f" with {r.config.overrides}" if r.config.overrides else ""
        return f"{r.config.task} on {r.data.dataset}, protocol {r.config.protocol}{changed}, {r.machine.device}"

    @property
    def slug(self) -> str:
        """For file names. What a person did not name (changed settings, which card, which bytes) is hashed into it."""
        r = self.first
        rest = f"{r.config.overrides} {r.machine.device} {r.data.fingerprint}"
        text = f"{r.config.task}-{r.data.dataset}-{r.config.protocol}-{r.config.device}"
        return re.sub(r"[^A-Za-z0-9._-]+", "_", text) + f"-{hashlib.sha256(rest.encode()).hexdigest()[:6]}"

    @property
    def reference(self) -> Entry | None:
        """The plain softmax entry, to which speed and memory are compared."""
        return next((e for e in self.entries if e.label == "softmax"), None)

    def rank(self, entry: Entry) -> str:
        """1 + how many are better by more than the interval of the difference; `=` where that ties with another."""
        if entry.accuracy is None:
            return ""
        rivals = [e for e in self.entries if e is not entry and e.accuracy is not None]
        better = [e for e in rivals if _difference(e, entry) > 0]
        tied = any(_difference(e, entry) == 0 for e in rivals)
        return f"{1 + len(better)}{'=' if tied else ''}"

    def ratio(self, entry: Entry, name: str) -> float | None:
        """The entry's figure of the step profile over that of softmax."""
        own = entry.profiled(name)
        base = self.reference.profiled(name) if self.reference else None
        return own / base if own is not None and base else None


def _changed_settings(record: Record) -> str:
    from .config import ConfigError, read_model

    try:
        model = read_model(record.config.model_name)
        usual = {**model.settings, **model.protocols.get(record.config.protocol, {})}
    except ConfigError:  # a plugin that is not loaded now
        usual = {}
    own = record.config.attention.settings
    return " ".join(f"{k}={v}" for k, v in sorted(own.items()) if k in usual and usual[k] != v)


def _difference(a: Entry, b: Entry) -> int:
    """1 when a is better than b beyond the interval of their difference, -1 when worse, 0 for a tie (Newcombe 1998)."""
    if a.accuracy is None or b.accuracy is None or a.interval is None or b.interval is None:
        return 0
    if a.accuracy < b.accuracy:
        return -_difference(b, a)
    below = a.accuracy - a.interval[0]
    above = b.interval[1] - b.accuracy
    return int(a.accuracy - b.accuracy > (below**2 + above**2) ** 0.5)


def build_tables(records: Iterable[Record]) -> list[Table]:
    """Group records into tables of entries; of several records of one seed the latest counts."""
    latest: dict[tuple[object, ...], Record] = {}
    for record in sorted(records, key=lambda r: r.created):
        latest[_table_key(record), _entry_key(record), record.config.seed] = record
    ordered = sorted(latest.values(), key=lambda r: (_table_key(r), _entry_key(r), r.config.seed))
    tables = []
    for _, group in groupby(ordered, key=_table_key):
        entries = [Entry(tuple(rs)) for _, rs in groupby(group, key=_entry_key)]
        entries.sort(key=lambda e: (-(e.accuracy if e.accuracy is not None else -1.0), e.label))
        tables.append(Table(tuple(entries)))
    return tables


def _table_key(r: Record) -> tuple[str, ...]:
    c = r.config
    return (c.task, r.data.dataset, c.protocol, c.overrides, c.device, r.machine.device, r.data.fingerprint)


def _entry_key(r: Record) -> tuple[str, str]:
    return r.config.model_name, json.dumps(r.config.attention.settings, sort_keys=True)


def rows(tables: Iterable[Table]) -> list[dict[str, Any]]:
    """The tables as flat rows with the columns COLUMNS; None where nothing was measured."""
    return [_row(table, entry) for table in tables for entry in table.entries]


def _row(table: Table, entry: Entry) -> dict[str, Any]:
    r, interval = entry.first, entry.interval
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
        "accuracy": _round(entry.accuracy, 2),
        "accuracy_std": _round(entry.accuracy_std, 2),
        "accuracy_ci95": f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else None,
        "accuracy_last": _round(entry.last_accuracy, 2),
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
        "torch": r.machine.torch,
        "python": r.machine.python,
        "commit": r.code.commit[:12] + ("-dirty" if r.code.dirty else ""),
        "fingerprint": r.data.fingerprint[:12],
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
    "accuracy": "accuracy %",
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
    body = []
    for entry in table.entries:
        row = _row(table, entry)
        low_high = entry.interval
        over = " (over 110 % of softmax)" if (row["params_ratio"] or 0) > FAIR_PARAMS_RATIO else ""
        row |= {
            "model": entry.label,
            "accuracy": _text(row["accuracy"], ".1f") + (f" ± {entry.accuracy_std:.1f}" if entry.accuracy_std else ""),
            "interval": f"{low_high[0]:.1f} to {low_high[1]:.1f}" if low_high else "",
            "step_time_ms": _text(row["step_time_ms"], ".1f"),
            "peak_memory_mb": _text(row["peak_memory_mb"], ",.0f"),
            "speed_vs_softmax": _text(row["speed_vs_softmax"], ".2f"),
            "memory_vs_softmax": _text(row["memory_vs_softmax"], ".2f"),
            "params": _text(row["params"], ",") + over,
            "train_time_s": _text(row["train_time_s"], ".0f"),
            "status": entry.status + (f": {entry.reason}" if entry.reason else ""),
        }
        body.append([str(row[key]) for key in MARKDOWN])
    r = table.first
    commits = sorted({_row(table, e)["commit"] for e in table.entries})
    note = (
        f"{r.data.test_size:,} test examples; steps of {r.config.train.batch_size} × {r.config.data.max_len:,} tokens"
        f" in {r.machine.precision} on {r.machine.threads} threads of torch {r.machine.torch};"
        f" commit {', '.join(commits)}. Speed and memory × are relative to softmax."
        " A rank with = is a tie: the difference is within its 95 % interval."
    )
    if r.data.dataset.endswith("-synthetic"):
        note += " Synthetic data: not comparable with any published figure."
    return f"## {table.title}\n\n{_align(list(MARKDOWN.values()), body)}\n\n{note}\n"


def _published_block(table: Table) -> str:
    r = table.first
    if r.data.dataset.endswith("-synthetic"):
        return ""
    found = [
        row
        for path in sorted(PUBLISHED.glob("*.csv"))
        for row in csv.DictReader(path.open(encoding="utf-8"))
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
        f" (protocol {r.config.protocol}).\n\n{_align(['model', 'accuracy %', 'source'], body)}\n"
    )


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _align(header: list[str], body: list[list[str]]) -> str:
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
