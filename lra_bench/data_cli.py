"""`lra-bench data`: look at, export, check and clear prepared data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Plugin, show_help

if TYPE_CHECKING:
    from tasks import Task

app = typer.Typer(
    callback=show_help, invoke_without_command=True, help="Look at, export, check and clear prepared data."
)

Name = Annotated[str, typer.Argument(help="Task.")]
Data = Annotated[str, typer.Option(help="auto, hub, embedded, or a folder or file with the data.")]

QUANTILES = (0, 25, 50, 75, 95, 100)
WHOLE = 2**31 - 1  # tokens, of which no sequence has more


@app.command()
def describe(
    task: Name,
    data: Data = "auto",
    protocol: Annotated[
        str, typer.Option(help="Whose maximum length counts for truncation and baselines.")
    ] = "compact",
    plugin: Plugin = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder for the histogram of lengths.")] = Path("results"),
) -> None:
    """Show source, fingerprint, sizes, balance, lengths, truncation, duplicates and trivial baselines of a task."""
    from tasks import load_task, task_spec, trivial_baselines

    from .plots import write_length_histogram
    from .plugins import load_plugins
    from .protocols import read_protocol
    from .stats import format_score

    load_plugins(map(str, plugin))
    spec = task_spec(task)
    max_len = read_protocol(protocol).for_task(task, spec)["data"]["max_len"]
    loaded = load_task(task, data, max_len=WHOLE)
    print(f"task {task}, version {spec.version}: {spec.description}")
    print(f"data set {loaded.dataset} from {loaded.source}, fingerprint {loaded.fingerprint}")
    _describe_splits(loaded, max_len, protocol)
    _describe_overlaps(loaded)
    cut = load_task(task, data, max_len=max_len)
    for name, score in trivial_baselines(task, cut.train, cut.test, cut.tokenizer).items():
        print(f"baseline {name}: {format_score(score, spec.metric)} on test at the {max_len:,} tokens of {protocol}")
    picture = write_length_histogram(out / f"lengths-{task}-{loaded.dataset}.png", loaded, max_len)
    print(f"histogram of lengths: {picture}")


def _describe_splits(task: Task, max_len: int, protocol: str) -> None:
    import numpy as np

    for name in ("train", "validation", "test"):
        split = getattr(task, name)
        shares = np.bincount(split.labels, minlength=task.num_classes) / len(split)
        balance = "; classes " + " ".join(f"{100 * s:.1f}" for s in shares) + " %" if task.num_classes > 1 else ""
        print(f"{name}: {len(split):,} examples{balance}")
        for number, sequences in enumerate(split.inputs, 1):
            quantiles = " ".join(f"{q:,.0f}" for q in np.percentile(sequences.lengths, QUANTILES))
            share = 100 * float((sequences.lengths > max_len).mean())
            which = f" of document {number}" if len(split.inputs) > 1 else ""
            percents = "/".join(map(str, QUANTILES))
            print(f"  tokens{which} at {percents} %: {quantiles}; over the {max_len:,} of {protocol}: {share:.1f} %")


def _describe_overlaps(task: Task) -> None:
    """Whole examples that occur twice, and for pairs the documents that splits share."""
    splits = {name: getattr(task, name) for name in ("train", "validation", "test")}
    keys = {
        name: [tuple(s[i].tobytes() for s in split.inputs) for i in range(len(split))] for name, split in splits.items()
    }
    repeated = {name: len(k) - len(set(k)) for name, k in keys.items()}
    print("exact repeats within " + ", ".join(f"{name} {count:,}" for name, count in repeated.items()))
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        both = len(set(keys[first]) & set(keys[second]))
        line = f"in both {first} and {second}: {both:,} examples"
        if len(splits[first].inputs) > 1:
            shared = len({d for k in keys[first] for d in k} & {d for k in keys[second] for d in k})
            line += (
                f", {shared:,} documents ({len({k[0] for k in keys[first]} & {k[0] for k in keys[second]}):,} citing)"
            )
        print(line)


@app.command()
def export(
    task: Name,
    out: Annotated[Path, typer.Option(help="Folder to write to.")],
    data: Data = "auto",
    plugin: Plugin = [],  # noqa: B006
) -> None:
    """Write a task's data in its release's file layout, which --data reads."""
    from tasks import export_dataset, load_dataset

    from .plugins import load_plugins

    load_plugins(map(str, plugin))
    dataset, *_ = load_dataset(task, data)
    for file in export_dataset(task, dataset, out):
        print(file)


@app.command()
def verify() -> None:
    """Recheck every prepared data set in the cache; exit code 1 when one is damaged."""
    from tasks.sources import cache_dir, check_cached

    damaged = 0
    for file in sorted(cache_dir().glob("*.safetensors")):
        reason = check_cached(file)
        damaged += bool(reason)
        print(f"{file}: {f'damaged ({reason}); it will be prepared anew when needed' if reason else 'ok'}")
    raise typer.Exit(1 if damaged else 0)


@app.command()
def clear() -> None:
    """Remove all prepared data."""
    from tasks.sources import cache_dir

    files = sorted(cache_dir().glob("*.safetensors"))
    for file in files:
        file.unlink()
    print(f"removed {len(files)} prepared data sets from {cache_dir()}")
