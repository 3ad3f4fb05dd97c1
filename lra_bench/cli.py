"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from .data_cli import app as data_app

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Compare attention variants on the Long Range Arena: accuracy, step time and peak memory.",
)

# All but RFA's arc-cosine twin.
DEFAULT_ZOO = "softmax,sdpa,rfa,linformer,performer,reformer,linear"

app.add_typer(data_app, name="data")

Protocol = Annotated[
    Optional[str], typer.Option(help="Protocol; by default compact on a GPU and quick without one.")  # noqa: UP045
]
Data = Annotated[str, typer.Option(help="auto, hub, embedded, or a folder or file with the data.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Results folder; records go to its runs/.")]
Settings = Annotated[list[str], typer.Option("--set", help="Override a setting: train.steps=200, model.dim=128, …")]
Compile = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option("--compile/--no-compile", help="torch.compile; by default where a run is long enough for it to pay."),
]
Plugin = Annotated[list[Path], typer.Option(help="A .py file that registers attentions or tasks; may be repeated.")]
Minutes = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(min=0.1, help="Save and stop after so many minutes; the same command goes on from there."),
]
Force = Annotated[bool, typer.Option("--force", help="Run again what is finished already.")]


@app.command()
def bench(
    task: Annotated[
        str, typer.Option(help="Task, or several separated by commas; by default the Long Range Arena's.")
    ] = "",
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = "softmax,sdpa,rfa",
    protocol: Protocol = None,
    data: Data = "auto",
    device: Device = "auto",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, counted from 0.")] = 1,
    out: Out = Path("results"),
    settings: Settings = [],  # noqa: B006  (typer reads the default, nothing changes it)
    plugin: Plugin = [],  # noqa: B006
    compile_: Compile = None,
    minutes: Minutes = None,
    force: Force = False,
) -> None:
    """Run tasks x models x seeds, then make the leaderboard and the plots."""
    tasks = _split(task) or _arena()
    configs = _resolve(tasks, _split(models), protocol, range(seeds), data, device, settings, plugin, compile_)
    _run(configs, out, force, minutes)


@app.command()
def run(
    task: Annotated[str, typer.Option(help="Task.")],
    model: Annotated[str, typer.Option(help="Model.")],
    protocol: Protocol = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of initial weights, order and random features.")] = 0,
    data: Data = "auto",
    device: Device = "auto",
    out: Out = Path("results"),
    settings: Settings = [],  # noqa: B006
    plugin: Plugin = [],  # noqa: B006
    compile_: Compile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and train nothing.")] = False,
    force: Force = False,
) -> None:
    """Run one cell; called again it resumes, or says that it is finished."""
    configs = _resolve([task], [model], protocol, [seed], data, device, settings, plugin, compile_)
    if dry_run:
        _describe(configs[0])
    else:
        _run(configs, out, force)


@app.command()
def profile(
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = DEFAULT_ZOO,
    lengths: Annotated[str, typer.Option(help="Sequence lengths.")] = "1024,2048,3072,4096,8192,16384",
    task: Annotated[str, typer.Option(help="Task, for vocabulary and number of inputs.")] = "text",
    protocol: Annotated[str, typer.Option(help="Protocol, for the sizes.")] = "compact",
    batch_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="By default the protocol's on a GPU and 2 on a CPU."),
    ] = None,
    device: Device = "auto",
    out: Out = Path("results"),
    settings: Settings = [],  # noqa: B006
    plugin: Plugin = [],  # noqa: B006
    compile_: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option("--compile/--no-compile", help="torch.compile for training steps; by default on a GPU alone."),
    ] = None,
) -> None:
    """Measure step time and memory against length, without data or training: efficiency.csv and its pictures."""
    from .config import ConfigError
    from .efficiency import profile_lengths

    parts = _split(lengths)
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--lengths {lengths!r}: expected positive numbers separated by commas, such as 1024,4096")
    base = _resolve([task], _split(models), protocol, [0], "embedded", device, settings, plugin, None)
    on_gpu = base[0].device == "cuda"
    training: dict[str, Any] = {"compile": on_gpu if compile_ is None else compile_}
    if batch_size or not on_gpu:
        training["batch_size"] = batch_size or 2
    configs = [
        config.model_copy(
            update={
                "data": config.data.model_copy(update={"max_len": int(part)}),
                "train": config.train.model_copy(update=training),
            }
        )
        for config in base
        for part in parts
    ]
    try:
        records = profile_lengths(configs, out)
    except KeyboardInterrupt:
        _efficiency(out)
        raise
    _efficiency(out)
    # Out of memory is a result here; anything else that ended a cell is not.
    if any(record.status not in ("ok", "oom") for record in records):
        raise typer.Exit(1)


@app.command()
def leaderboard(out: Out = Path("results")) -> None:
    """Make the tables and the plots again from the records under --out alone."""
    if (out / "profiles").is_dir():
        _efficiency(out)
        if not (out / "runs").is_dir():
            return
    _tables(out)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Model, as the leaderboard names it.")],
    second: Annotated[str, typer.Argument(help="The model to compare it with.")],
    out: Out = Path("results"),
) -> None:
    """Say of two models which is better, by how much, and whether the evidence suffices."""
    from .compare import compare as compare_entries
    from .config import ConfigError
    from .records import Record, read_records
    from .tables import build_tables

    found = compare_entries(build_tables(read_records(out, Record)), first, second)
    if not found:
        raise ConfigError(f"no table under {out} has scores of both {first!r} and {second!r}")
    print("\n".join(map(str, found)))


@app.command("list")
def list_() -> None:
    """Show tasks, models and protocols."""
    import yaml

    from .resolve import CONFIGS, names

    for kind in ("tasks", "models", "protocols"):
        print(kind)
        for name in names(kind):
            entry = yaml.safe_load((CONFIGS / kind / f"{name}.yaml").read_text(encoding="utf-8"))
            paper = f" [{entry['paper']}]" if entry.get("paper") else ""
            print(f"  {name:<16} {entry['description']}{paper}")


def _arena() -> list[str]:
    from tasks import list_tasks, task_spec

    return [name for name in list_tasks() if task_spec(name).kind == "classification"]


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _resolve(
    tasks: list[str],
    models: list[str],
    protocol: str | None,
    seeds: Any,
    data: str,
    device: str,
    settings: list[str],
    plugins: list[Path],
    compile_: bool | None,
) -> list[Any]:
    from .config import ConfigError
    from .plugins import load_plugins
    from .resolve import parse_overrides, read_protocol

    if not models:
        raise ConfigError("no model given; see lra-bench list")
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {device!r}; expected auto, cpu or cuda")
    overrides = parse_overrides(settings)
    if compile_ is not None:
        overrides["train.compile"] = compile_
    if protocol:
        read_protocol(protocol)
    import torch

    from tasks import task_spec

    from .sweep import resolve_cells

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: torch sees no CUDA card here; use --device cpu")
    load_plugins(map(str, plugins))
    for task in tasks:
        task_spec(task)
    return resolve_cells(
        tasks,
        models,
        protocol or ("compact" if device == "cuda" else "quick"),
        list(seeds),
        device=device,
        data_source=data,
        plugins=tuple(str(p.resolve()) for p in plugins),
        overrides=overrides,
    )


def _run(configs: list[Any], out: Path, force: bool, minutes: float | None = None) -> None:
    from .sweep import run_cells

    try:
        records = run_cells(configs, out, force, minutes)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        _tables(out)
        raise typer.Exit(1) from None
    _tables(out)
    if len(records) < len(configs) or any(record.status != "ok" for record in records):
        raise typer.Exit(1)


def _tables(out: Path) -> None:
    from .config import ConfigError
    from .leaderboard import write_csv, write_markdown
    from .plots import write_plots
    from .records import Record, read_records
    from .tables import build_tables

    tables = build_tables(read_records(out, Record))
    if not tables:
        raise ConfigError(f"no records under {out / 'runs'}; run lra-bench bench first")
    write_csv(out / "leaderboard.csv", tables)
    print(write_markdown(out / "leaderboard.md", tables))
    pictures = write_plots(out, tables)
    _list_files([out / "leaderboard.csv", out / "leaderboard.md", *pictures])


def _efficiency(out: Path) -> None:
    from .efficiency import build_groups, write_efficiency
    from .efficiency_plots import write_efficiency_plots
    from .records import ProfileRecord, read_records

    groups = build_groups(read_records(out, ProfileRecord))
    if groups:
        print(write_efficiency(out, groups))
        _list_files([out / "efficiency.csv", out / "efficiency.md", *write_efficiency_plots(out, groups)])


def _list_files(paths: list[Path]) -> None:
    print("written:")
    print("\n".join(f"  {path}" for path in paths))


def _describe(config: Any) -> None:
    import yaml

    from .build import count_parameters, estimate_step

    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
    print(f"parameters: {count_parameters(config):,}")
    try:
        estimate = estimate_step(config)
    except Exception as error:  # see estimate_step: some attentions cannot be estimated
        print(f"memory: cannot be estimated ({type(error).__name__})")
        return
    print(f"estimated memory of a training step: {estimate.memory_bytes / 2**20:,.0f} MB of tensors in float32")
    print(f"matrix products of a training step: {estimate.flops / 1e9:,.1f} GFLOP")


def main() -> None:
    """Entry point: bad input gives one line on stderr and exit code 2, never a traceback."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        message = _bad_input(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        code = 2
    sys.exit(code or 0)


def _bad_input(error: Exception) -> str | None:
    """The line to print when `error` is the user's to mend; None for a fault of ours."""
    from tasks import DataError

    from .config import ConfigError

    # Usage errors of the command line; typer 0.16 and older take theirs from click, newer ones carry their own.
    if hasattr(error, "format_message"):
        return " ".join(str(error.format_message()).split())
    if isinstance(error, ConfigError | DataError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return None
