"""Tables as people read them: figures rounded for the eye, as Markdown and LaTeX, published figures apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from tasks.files import atomic_path

from .config import CUDA_GRAPHS, RunConfig
from .leaderboard import row_of
from .machine import Machine
from .overview import Overview, build_overviews
from .published import published_accuracies, published_on, published_on_all
from .stats import axis_label, decimals, lower_is_better
from .tables import Entry, Table

FAIR_PARAMS_RATIO = 1.10  # the Long Range Arena's rule for a fair entry
# Of the machine's processor time; on an idle shared machine others took up to 7.
DISTURBED_PERCENT = 10.0
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
            "status": entry.status + (f": {entry.reason}" if entry.reason else ""),
            "step_time_ms": _text(row["step_time_ms"], ",.1f"),
            "peak_memory_mb": _text(row["peak_memory_mb"], ",.0f"),
            "speed_vs_softmax": _text(row["speed_vs_softmax"], ".2f"),
            "memory_vs_softmax": _text(row["memory_vs_softmax"], ".2f"),
            "params": _text(row["params"], ",") + _over(entry),
            "seeds": _seeds(entry),
            "train_time_s": _text(row["train_time_s"], ",.0f"),
        }
        if row["plateau"]:
            row["status"] += f", on the plateau of {row['plateau']}"
        for where, other in _disturbances(entry).items():
            row["status"] += f", timed while others took {other:.0f} % of the {where}"
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


def _disturbances(entry: Entry) -> dict[str, float]:
    """What others took of the CPU and the GPU while steps were timed, in percent, where that misleads."""
    found = {where: entry.profiled(f"other_{where.lower()}_percent") or 0.0 for where in ("CPU", "GPU")}
    return {where: other for where, other in found.items() if other > DISTURBED_PERCENT}


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
        f" {_tie(table.entries)}{lower}"
    )
    if table.synthetic:
        note += " Synthetic data: not comparable with any published figure."
    elif (known := published_on(r.config.task, r.config.family)) and r.data.dataset not in known:
        note += f" Published figures are of other data ({distinct(known)}) and not comparable."
    return note


def _tie(entries: Iterable[Entry]) -> str:
    several = any(len(e.scores) > 1 for e in entries)
    chance = "test examples and seeds" if several else "test examples; one seed does not tell how much seeds differ"
    return f"A rank with = is a tie: the difference is within its 95 % interval ({chance})."


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
    for row in overview.rows:
        slower = overview.ratio(row, "step_time_ms")
        cells = ["" if e is None else e.status if e.score is None else _score(e, 1) + e.mark for e in row.entries]
        means = [_text(row.mean, ".1f"), _interval(row.interval, 1)]
        run = [e for e in row.entries if e]
        label = row.label + next(filter(None, map(_over, run)), "")
        star = "*" if any(map(_disturbances, run)) else ""
        ratios = [
            _text(1 / slower, ".2f") + star if slower else "",
            _text(overview.ratio(row, "peak_memory_mb"), ".2f"),
        ]
        body.append([overview.rank(row), label, *cells, *means, *ratios])
    for name, scores in overview.baselines.items():
        body.append(["", name, *(f"{score:.1f}" for score in (*scores, mean(scores))), "", "", ""])
    tasks = [f"{t.first.config.task} on {t.first.data.dataset}" for t in tables]
    marked = any(e and e.mark for row in overview.rows for e in row.entries)
    return Display(
        overview.slug,
        overview.title,
        ["rank", "model", *tasks, "mean %", "95 % interval", "speed ×", "memory ×"],
        body,
        "Accuracy in percent; every task counts alike, and a model without a score on one has no mean. Speed and memory"
        " × are geometric means of the ratios to softmax in the tables below, which say what they were measured on."
        " Over 110 %: of softmax's parameters. *: timed while others took more than 10 % of the CPU or the GPU."
        f"{' †: see the status in the tables below.' if marked else ''}"
        f" {_tie(entry for table in tables for entry in table.entries)}",
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


def markdown(tables: Sequence[Table]) -> str:
    """All tables as Markdown, published figures in blocks of their own below those they may be read beside."""
    parts = []
    for own, published in displays(tables):
        parts.append(f"## {own.title}\n\n{align(own.header, own.body)}\n\n{own.note}\n")
        if published:
            block = align(published.header, published.body)
            parts[-1] += f"\n### {published.title}\n\n{published.note}\n\n{block}\n"
    return "\n".join(parts)


def align(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up as plain text."""
    cells = [[c.replace("|", "\\|").replace("\n", " ") for c in line] for line in [header, *body]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def latex(tables: Sequence[Table]) -> str:
    """A booktabs table for each, without the published figures, which have papers of their own to be cited from."""
    import pandas as pd

    parts = ["% \\usepackage{booktabs}"]
    for own, _ in displays(tables):
        frame = pd.DataFrame(own.body, columns=own.header).map(_escape)
        frame.columns = pd.Index(map(_escape, own.header))
        caption = _escape(f"{own.title}. {own.note}")
        parts.append(frame.to_latex(index=False, caption=caption, label=f"tab:{own.slug}", position="t"))
    return "\n".join(parts)


_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "×": r"$\times$",
        "±": r"$\pm$",
        "†": r"$\dagger$",
    }
)


def _escape(text: str) -> str:
    return text.translate(_LATEX)


def write_markdown(path: Path, tables: Sequence[Table]) -> str:
    """leaderboard.md; returns its text."""
    text = "# Leaderboard\n\n" + markdown(tables)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def write_latex(path: Path, tables: Sequence[Table]) -> None:
    """leaderboard.tex, for a paper's \\input."""
    with atomic_path(path) as temporary:
        temporary.write_text(latex(tables), encoding="utf-8")
