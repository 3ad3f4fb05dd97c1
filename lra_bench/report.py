"""Records -> report.html: one page with everything in it, that needs no network and runs nothing from a record."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from tasks.files import atomic_path

from .config import ConfigError
from .display import HEADER, Display, display, display_overview, display_published, display_published_overview
from .efficiency import SHOWN_MODES, Group, build_groups, uncertain
from .leaderboard import row_of
from .overview import Overview, build_overviews
from .records import ProfileRecord, Record, read_records
from .report_charts import bubble_chart, learning_chart, length_chart
from .tables import Table, build_tables

TEMPLATES = Path(__file__).parent / "templates"
# Fields of a result that have a number per test example.
PER_ITEM = {"right", "summands"}
SCRIPTS = ("sortable-tablesort-4.1.7.min.js", "report.js")

# A cell: what is shown, and what its column is sorted by.
Cell = tuple[str, Any]


def write_report(out: Path) -> Path:
    """Write report.html from the records under `out`; returns its path. Raises ConfigError where there are none."""
    records, profiles = read_records(out, Record), read_records(out, ProfileRecord)
    if not records and not profiles:
        raise ConfigError(f"no records under {out}; run lra-bench bench or profile first")
    tables = build_tables(records)
    # Everything from a record reaches the page through autoescape or tojson, which escapes what could end a script;
    # and the page's policy runs no script but these, by their hashes.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    scripts = [get_plotlyjs(), *(_part(name) for name in SCRIPTS)]
    created = [r.created for r in records] + [r.created for r in profiles]
    codes = [r.code for r in records] + [r.code for r in profiles]
    page = environment.get_template("report.html").render(
        css=_part("report.css"),
        scripts=scripts,
        script_hashes=[base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts],
        sections=[*map(_mean_section, build_overviews(tables)), *map(_section, tables)],
        groups=[_group(group) for group in build_groups(profiles)],
        runs=[_run(record) for record in sorted(records, key=lambda r: r.run_id)],
        created=max(created),
        commits=sorted({code.short for code in codes}),
    )
    with atomic_path(out / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return out / "report.html"


def _part(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").strip()


def _mean_section(overview: Overview) -> dict[str, Any]:
    own = display_overview(overview)
    return {
        "id": own.slug,
        **_plain(own),
        "baselines": len(overview.baselines),
        "published": _optional(display_published_overview(overview)),
        "charts": [],
    }


def _section(table: Table) -> dict[str, Any]:
    own = display(table)
    raw = [row_of(table, entry) for entry in table.entries]
    raw += [{"score": value} for _, value in reversed(table.baselines.items())]
    rows = [_cells(line, row) for line, row in zip(own.body, raw, strict=True)]
    filled = [i for i in range(len(own.header)) if any(row[i][0] for row in rows)]
    return {
        "id": table.slug,
        "title": own.title,
        "note": own.note,
        "header": [own.header[i] for i in filled],
        "rows": [[row[i] for i in filled] for row in rows],
        "baselines": len(table.baselines),
        "published": _optional(display_published(table)),
        "charts": [chart for chart in (bubble_chart(table), learning_chart(table)) if chart],
    }


def _cells(line: Sequence[str], row: dict[str, Any]) -> list[Cell]:
    cells = []
    for key, text in zip(HEADER, line, strict=True):
        value = row.get(key)
        cells.append((text, value if isinstance(value, int | float) else _sorted_by(text)))
    return cells


def _sorted_by(text: str) -> str:
    """The number that a cell begins with, before a deviation, the end of an interval or a sign; else all of it."""
    number = re.match(r"-?\d[\d,]*(\.\d+)?", text)
    return number[0].replace(",", "") if number else text


def _optional(table: Display | None) -> dict[str, Any] | None:
    return _plain(table) if table else None


def _plain(table: Display) -> dict[str, Any]:
    rows = [[(text, _sorted_by(text)) for text in line] for line in table.body]
    return {"title": table.title, "note": table.note, "header": table.header, "rows": rows}


def _group(group: Group) -> dict[str, Any]:
    header = ["model", "mode", *(f"{n:,}" for n in group.lengths)]
    return {
        "title": group.title,
        "note": group.note,
        "header": header,
        "rows": [
            [(name, name), (mode, mode), *_by_length(group, name, mode)]
            for mode in SHOWN_MODES
            for name in group.labels
        ],
        "charts": [
            chart
            for field, text in (("step_time_ms", "training step, ms"), ("peak_memory_mb", "peak memory, MB"))
            if (chart := length_chart(group, field, text))
        ],
    }


def _by_length(group: Group, name: str, mode: Any) -> Iterable[Cell]:
    for seq_len in group.lengths:
        record = group.find(name, mode, seq_len)
        if record is None:
            yield "", ""
        elif record.profile is None:
            yield record.status, ""
        else:
            memory = record.profile.peak_memory_mb or 0.0
            star = "*" if uncertain(record) else ""
            yield f"{record.profile.step_time_ms:,.1f} ms{star}, {memory:,.0f} MB", record.profile.step_time_ms


def _run(record: Record) -> dict[str, Any]:
    content = record.model_dump(mode="json", exclude={"loss_curve": True, "validation_curve": True, "result": PER_ITEM})
    return {
        "id": record.run_id,
        "status": record.status,
        "text": yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100),
    }
