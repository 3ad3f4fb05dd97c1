"""Tables for reading as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.files import atomic_path

from .display import displays
from .tables import Table


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
