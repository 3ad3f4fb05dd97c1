"""Verbs that read records and train nothing: leaderboard, compare, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Out

if TYPE_CHECKING:
    from .tables import Table

app = typer.Typer()


@app.command()
def leaderboard(out: Out = Path("results"), as_json: Json = False) -> None:
    """Make the tables and the plots again from the records under --out alone."""
    ran, profiled = (out / "runs").is_dir(), (out / "profiles").is_dir()
    if profiled:
        # As JSON one document is printed: that of the runs where there are any.
        show_efficiency(out, as_json, silent=as_json and ran)
    if ran or not profiled:
        show_tables(out, as_json)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Model, as the leaderboard names it.")],
    second: Annotated[str, typer.Argument(help="The model to compare it with.")],
    out: Out = Path("results"),
    as_json: Json = False,
) -> None:
    """Say of two models which is better, by how much, and whether the evidence suffices."""
    from .compare import compare as compare_entries
    from .config import ConfigError

    if first == second:
        raise ConfigError(f"{first!r} would be compared with itself; name two models")
    found = compare_entries(_read_tables(out), first, second)
    if not found:
        raise ConfigError(f"no table under {out} has scores of both {first!r} and {second!r}")
    print(json.dumps([c.as_row() for c in found], indent=1) if as_json else "\n".join(map(str, found)))


@app.command()
def report(out: Out = Path("results")) -> None:
    """Write report.html from the records under --out: tables and charts in one page that needs no network."""
    from .report import write_report

    list_files([write_report(out)])


def show_tables(out: Path, as_json: bool = False) -> None:
    """Write the leaderboard and its plots under `out` and print it. Raises ConfigError where there are no records."""
    from .leaderboard import rows, write_csv
    from .markup import write_latex, write_markdown
    from .plots import write_plots

    tables = _read_tables(out)
    write_csv(out / "leaderboard.csv", tables)
    text = write_markdown(out / "leaderboard.md", tables)
    write_latex(out / "leaderboard.tex", tables)
    pictures = write_plots(out, tables)
    if as_json:
        print(json.dumps(rows(tables), indent=1))
        return
    print(text)
    list_files([*(out / f"leaderboard.{form}" for form in ("csv", "md", "tex")), *pictures])


def _read_tables(out: Path) -> list[Table]:
    from .config import ConfigError
    from .records import Record, read_records
    from .tables import build_tables

    tables = build_tables(read_records(out, Record))
    if not tables:
        raise ConfigError(f"no records under {out / 'runs'}; run lra-bench bench first")
    return tables


def show_efficiency(out: Path, as_json: bool = False, silent: bool = False) -> None:
    """The same for profiles: efficiency.csv, efficiency.md and its pictures; nothing where there are none."""
    from .efficiency import build_groups, efficiency_rows, write_efficiency
    from .efficiency_plots import write_efficiency_plots
    from .records import ProfileRecord, read_records

    groups = build_groups(read_records(out, ProfileRecord))
    if not groups:
        return
    text, pictures = write_efficiency(out, groups), write_efficiency_plots(out, groups)
    if silent:
        return
    if as_json:
        print(json.dumps(efficiency_rows(groups), indent=1))
        return
    print(text)
    list_files([out / "efficiency.csv", out / "efficiency.md", *pictures])


def list_files(paths: list[Path]) -> None:
    """Say what was written."""
    print("written:")
    print("\n".join(f"  {path}" for path in paths))
