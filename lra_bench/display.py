"""Tables as people read them: figures rounded for the eye, published figures apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isinf
from statistics import mean
from textwrap import shorten
from typing import Any

from .config import CUDA_GRAPHS, RunConfig, as_typed
from .entry import Entry
from .leaderboard import row_of
from .machine import Machine
from .overview import Overview, build_overviews
from .published import published_accuracies, published_on, published_on_all
from .stats import axis_label, decimals, lower_is_better
from .tables import Pair, Table, usual_margin

LONGEST_REASON = 160  # characters
FAIR_PARAMS_RATIO = 1.10  # the Long Range Arena's rule for a fair entry
# How training steps run, the fastest last.
HOW = EAGER, COMPILED, GRAPHED = "eager", "compiled", "as CUDA graphs"

HEADER = {
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


@dataclass(frozen=True)
class Display:
    """A table in text: cells as they are to be read, and what has to be said with them. slug: for links and labels."""

    slug: str
    title: str
    header: list[str]
    body: list[list[str]]
    note: str


def display(table: Table) -> Display:
    """The entries best first, then the baselines, best first."""
    body, digits = [], decimals(table.metric)
    for entry in table.entries:
        row = row_of(table, entry)
        row |= {
            "model": entry.label,
            "score": _score(entry, digits),
            "interval": _interval(entry.interval, digits),
            "status": ": ".join(filter(None, (entry.status, _reason(entry)))),
            "step_time_ms": _text(row["step_time_ms"], ",.1f"),
            "peak_memory_mb": _text(row["peak_memory_mb"], ",.0f"),
            "speed_vs_softmax": _text(row["speed_vs_softmax"], ".2f"),
            "memory_vs_softmax": _text(row["memory_vs_softmax"], ".2f"),
            "params": _text(row["params"], ",") + _over(entry),
            "seeds": _seeds(entry),
            "train_time_s": _text(row["train_time_s"], ",.0f"),
        }
        if (guess := row["plateau"]) and entry.interval:
            low, high = entry.interval
            where = "on the plateau of" if low <= table.baselines[guess] <= high else "worse than"
            row["status"] += f", {where} {guess}"
        row["status"] += "".join(f", {doubt}" for doubt in entry.doubts)
        body.append([str(row[key]) for key in HEADER])
    for name, value in reversed(table.baselines.items()):
        guess = {"model": name, "score": f"{value:.{digits}f}", "status": "baseline"}
        body.append([guess.get(key, "") for key in HEADER])
    header = list((HEADER | {"score": axis_label(table.metric)}).values())
    return Display(table.slug, table.title, header, body, _note(table))


def _seeds(entry: Entry) -> str:
    scored, all_seeds = len(entry.scores), len(entry.records)
    return f"{scored} of {all_seeds}" if 0 < scored < all_seeds else str(all_seeds)


def _over(entry: Entry) -> str:
    return " (over 110 % of softmax)" if (entry.first.params_ratio or 0) > FAIR_PARAMS_RATIO else ""


def _reason(entry: Entry) -> str:
    """The entry's reason; of a failure not all of it where it is long, which is in the CSV."""
    return entry.reason if entry.status == "ok" else shorten(entry.reason, LONGEST_REASON, placeholder=" …")


def _note(table: Table) -> str:
    r = table.first
    records = [record for entry in table.entries for record in entry.records]
    # What ended before it was measured may not have got so far as to be compiled.
    how = how_they_ran((e.label, x.config, x.machine) for e in table.entries for x in e.records if x.profile)
    compiled = "" if how == EAGER else f", {how},"
    lower = " Lower is better." if lower_is_better(table.metric) else ""
    ratios = " Speed and memory × are relative to softmax." if table.reference else ""
    note = (
        f"{r.data.test_size:,} test examples; steps of {r.config.batch_label},"
        f" in {r.machine.precision}{compiled} on {distinct(x.machine.runtime for x in records)};"
        f" commit {distinct(x.code.short for x in records)}.{ratios}"
        f" {_tie(table.entries, table.pairs, decimals(table.metric))}{lower}{bare_names(x.config for x in records)}"
    )
    if (train := r.config.train).ends_warming_up:
        note += f" The learning rate never came to its peak: {train.steps:,} steps of {train.warmup:,} of warm-up."
    if table.synthetic:
        note += " Synthetic data: not comparable with any published figure."
    elif (known := published_on(r.config.task, r.config.family)) and r.data.dataset not in known:
        note += f" Published figures are of other data ({distinct(known)}) and not comparable."
    return note


def _tie(entries: Iterable[Entry], pairs: Sequence[Pair[Any]], digits: int) -> str:
    several = any(len(e.scores) > 1 for e in entries)
    chance = "test examples and seeds" if several else "test examples; one seed does not tell how much seeds differ"
    margin = usual_margin(pairs)
    usual = "" if margin is None or isinf(margin) else f", mostly ± {margin:.{digits}f} here"
    return (
        f"A rank with = is a tie: the difference is within its 95 % interval{usual}, which holds for all pairs at once"
        f" ({chance})."
    )


def how_asked(config: RunConfig) -> str:
    """How training steps were to run, of HOW."""
    if not config.train.compile:
        return EAGER
    return GRAPHED if config.train.compile == CUDA_GRAPHS and config.device == "cuda" else COMPILED


def how_they_ran(runs: Iterable[tuple[str, RunConfig, Machine]]) -> str:
    """How training steps of the named models ran: `compiled`, `eager`, `compiled but for rfa`."""
    models: dict[str, str] = {}
    for name, config, machine in runs:
        how = how_asked(config) if machine.compiled else EAGER
        models[name] = min(how, models.get(name, how), key=HOW.index)
    best = max(models.values(), key=HOW.index, default=EAGER)
    others = [name for name, how in models.items() if how != best]
    return f"{best}{' but for ' * bool(others)}{', '.join(others)}"


def bare_names(configs: Iterable[RunConfig]) -> str:
    """What a model's bare name stands for where other rows name settings: ` rfa without brackets: num_features=64.`"""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for config in configs:
        own, across = config.attention.settings, config.attention.cross
        settings = own | {f"cross.{name}": value for name, value in across.items()}
        found.setdefault(config.model_name, {})[config.attention.changed] = settings
    notes = []
    for model, rows in found.items():
        bare = rows.get("", {})
        varied = {
            key: value for key, value in bare.items() if any(row.get(key, value) != value for row in rows.values())
        }
        if varied:
            words = " ".join(as_typed(key, value) for key, value in varied.items())
            notes.append(f" {model} without brackets: {words}.")
    return "".join(notes)


def distinct(texts: Iterable[str]) -> str:
    """Each text once, separated by commas: one where the records of a table agree."""
    return ", ".join(sorted(set(texts)))


def display_published(table: Table) -> Display | None:
    """Published accuracies of the table's task and family; None where there are none, or they are of other data."""
    r = table.first
    if r.data.dataset not in published_on(r.config.task, r.config.family):
        return None
    found = published_accuracies(r.config.task, r.config.family)
    return Display(
        f"published-{table.slug}",
        f"Published for {r.config.task}, family {r.config.family}",
        ["model", "accuracy %", "source"],
        [[model, x["value"] + (f" ± {x['std']}" if x["std"] else ""), source] for (source, model), x in found.items()],
        _published_note(table),
    )


def _published_note(table: Table) -> str:
    return (
        "Copied from their sources, measured by others on other machines, never ranked with the rows above,"
        f" which are of protocol {table.first.config.protocol_label}."
    )


def display_overview(overview: Overview) -> Display:
    """Accuracy on every task and its mean, then the guesses that need no model."""
    tables, body = overview.tables, []
    softmax = [table.reference for table in tables if table.reference]
    for row in overview.rows:
        slower = overview.ratio(row, "step_time_ms")
        cells = ["" if e is None else e.status if e.score is None else _score(e, 1) + e.mark for e in row.entries]
        means = [_text(row.mean, ".1f"), _interval(row.interval, 1)]
        run = [e for e in row.entries if e]
        label = row.label + next(filter(None, map(_over, run)), "")
        star = next((e.star for e in run + softmax if e.star), "")
        ratios = [
            _text(1 / slower, ".2f") + star if slower else "",
            _text(overview.ratio(row, "peak_memory_mb"), ".2f"),
        ]
        body.append([overview.rank(row), label, *cells, *means, *ratios])
    for name, scores in overview.baselines.items():
        body.append(["", name, *(f"{score:.1f}" for score in (*scores, mean(scores))), "", "", ""])
    tasks = [f"{t.first.config.task} on {t.first.data.dataset}" for t in tables]
    signs = [sign for sign in "*†" if any(sign in cell for line in body for cell in line[2:])]
    see = f" {' and '.join(signs)}: see the status in the tables below." if signs else ""
    return Display(
        overview.slug,
        overview.title,
        ["rank", "model", *tasks, "mean %", "95 % interval", "speed ×", "memory ×"],
        body,
        "Accuracy in percent; every task counts alike, and a model without a score on one has no mean. Speed and memory"
        " × are geometric means of the ratios to softmax in the tables below, which say what they were measured on."
        f" Over 110 %: of softmax's parameters.{see}"
        f" {_tie((entry for table in tables for entry in table.entries), overview.pairs, 1)}",
    )


def display_published_overview(overview: Overview) -> Display | None:
    """The same of published accuracies, by models that have one on every task; None where none may stand there."""
    tasks, family = [t.first.config.task for t in overview.tables], overview.tables[0].first.config.family
    if not all(
        t.first.data.dataset in published_on(task, family) for t, task in zip(overview.tables, tasks, strict=True)
    ):
        return None
    body = [
        [model, *values, f"{mean(map(float, values)):.1f}", source]
        for source, model, values in published_on_all(tasks, family)
    ]
    return Display(
        f"published-{overview.slug}",
        f"Published for {', '.join(tasks)}, family {family}",
        ["model", *tasks, "mean %", "source"],
        body,
        _published_note(overview.tables[0]) + " The means over these tasks were taken here.",
    )


def _score(entry: Entry, digits: int) -> str:
    deviation = f" ± {entry.score_std:.{digits}f}" if entry.score_std else ""
    return _text(entry.score, f".{digits}f") + deviation


def _interval(bounds: tuple[float, float] | None, digits: int) -> str:
    return f"{bounds[0]:.{digits}f} to {bounds[1]:.{digits}f}" if bounds else ""


def _text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def displays(tables: Sequence[Table]) -> list[tuple[Display, Display | None]]:
    """All there is to read: means over tasks, then every table; each with the published figures beside it."""
    means = [(display_overview(o), display_published_overview(o)) for o in build_overviews(tables)]
    return means + [(display(table), display_published(table)) for table in tables]
