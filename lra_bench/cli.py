"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from .data_cli import app as data_app
from .exits import exit_with
from .options import (
    Compile,
    Data,
    Device,
    Force,
    Grid,
    Json,
    Minutes,
    Models,
    Out,
    Plugin,
    Protocol,
    Quiet,
    Seeds,
    Settings,
    Tasks,
    TensorBoard,
    Threads,
    arena,
    resolve_options,
    show_help,
    split,
)
from .profile_cli import app as profile_app
from .results_cli import app as results_app

app = typer.Typer(
    add_completion=True,
    callback=show_help,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Compare attention variants on the Long Range Arena: accuracy, step time and peak memory.",
)


@app.command()
def bench(
    task: Tasks = "",
    models: Models = "softmax,sdpa,rfa",
    protocol: Protocol = None,
    data: Data = "auto",
    device: Device = "auto",
    seeds: Seeds = 1,
    out: Out = Path("results"),
    settings: Settings = [],  # noqa: B006  (typer reads the default, nothing changes it)
    plugin: Plugin = [],  # noqa: B006
    compile_: Compile = None,
    minutes: Minutes = None,
    force: Force = False,
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run tasks x models x seeds, one after the other, then make the leaderboard and the plots."""
    sweep(**locals())


@app.command()
def sweep(
    task: Tasks = "",
    models: Models = "softmax,sdpa,rfa",
    protocol: Protocol = None,
    data: Data = "auto",
    device: Device = "auto",
    seeds: Seeds = 1,
    out: Out = Path("results"),
    settings: Settings = [],  # noqa: B006
    plugin: Plugin = [],  # noqa: B006
    compile_: Compile = None,
    minutes: Minutes = None,
    force: Force = False,
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
    engine: Annotated[str, typer.Option(help="Where cells run: local or ray.")] = "local",
    workers: Annotated[int, typer.Option(min=1, help="Cells at a time on this machine; cards are shared out.")] = 1,
    threads: Threads = None,
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of a running Ray cluster; by default one is started on this machine."),
    ] = None,
    cell_minutes: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(min=0.1, help="Stop a cell after so many minutes, kill it where it hangs, and go on."),
    ] = None,
    grid: Grid = [],  # noqa: B006
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and run nothing.")] = False,
) -> None:
    """`bench` with a grid of settings, engines (several cells at a time, here or on a Ray cluster) and a plan."""
    from .cell import num_processes
    from .sweep import plan_cells

    if num_processes() > 1:
        from .config import ConfigError

        raise ConfigError("several processes work on one cell at a time: under torchrun use lra-bench run")
    configs = resolve_options(
        split(task) or arena(),
        split(models),
        range(seeds),
        protocol=protocol,
        data=data,
        device=device,
        settings=settings,
        plugins=plugin,
        compile_=compile_,
        grid=grid,
    )
    chosen = _engine(configs[0].device, engine, workers, address, cell_minutes, quiet, tensorboard)
    say = _say(quiet)
    plans = plan_cells(
        configs, out, threads=threads or _threads(workers), force=force, tensorboard=tensorboard, say=say
    )
    if dry_run:
        from .outline import outline

        print(outline(plans, as_json))
    else:
        _run(plans, chosen, minutes, say, as_json)


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
    threads: Threads = None,
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one cell; again, it resumes or says that it is finished. Under torchrun processes share its batches."""
    from .cell import is_main_process, num_processes
    from .engines import LocalEngine, TorchrunEngine
    from .sweep import plan_cells

    (config,) = resolve_options(
        [task],
        [model],
        [seed],
        protocol=protocol,
        data=data,
        device=device,
        settings=settings,
        plugins=plugin,
        compile_=compile_,
    )
    if dry_run:
        from .outline import describe_run

        text, runs = describe_run(config)
        print(text, end="")
        raise typer.Exit(0 if runs else 1)
    _check_tensorboard(tensorboard)
    processes = num_processes()
    config.per_process(processes)
    first = is_main_process()
    say = _say(quiet or not first)
    plans = plan_cells([config], out, threads=threads, force=force, tensorboard=tensorboard, say=say)
    _run(plans, TorchrunEngine() if processes > 1 else LocalEngine(log=quiet), None, say, as_json, tables=first)


app.add_typer(profile_app)
app.add_typer(results_app)


@app.command("list")
def list_() -> None:
    """Show tasks, models and protocols."""
    import yaml

    from .protocols import CONFIGS, names

    for kind in ("tasks", "models", "protocols"):
        print(kind)
        for name in names(kind):
            entry = yaml.safe_load((CONFIGS / kind / f"{name}.yaml").read_text(encoding="utf-8"))
            paper = f" [{entry['paper']}]" if entry.get("paper") else ""
            print(f"  {name:<16} {entry['description']}{paper}")


app.add_typer(data_app, name="data")


def _engine(
    device: str,
    name: str,
    workers: int,
    address: str | None,
    cell_minutes: float | None,
    quiet: bool,
    tensorboard: bool,
) -> Any:
    from .config import ConfigError
    from .engines import LocalEngine, RayEngine
    from .machine import cuda_devices

    cell_seconds = None if cell_minutes is None else 60 * cell_minutes
    _check_tensorboard(tensorboard)
    if name == "local":
        if address:
            raise ConfigError("--address is a Ray cluster's: use it with --engine ray")
        devices = cuda_devices() if device == "cuda" and workers > 1 else ()
        return LocalEngine(cell_seconds, workers, devices, log=quiet or workers > 1)
    if name != "ray":
        raise ConfigError(f"unknown engine {name!r}; expected local or ray")
    if workers > 1:
        raise ConfigError("--workers is for --engine local; Ray runs as many cells as its CPUs and cards allow")
    if tensorboard:
        raise ConfigError("--tensorboard is for --engine local: the curves would stay on the workers")
    return RayEngine(cell_seconds, address, quiet)


def _check_tensorboard(wanted: bool) -> None:
    from importlib.util import find_spec

    from .config import ConfigError

    if wanted and not find_spec("tensorboard"):
        raise ConfigError("--tensorboard needs TensorBoard: pip install -e '.[tensorboard]'")


def _threads(workers: int) -> int:
    from .machine import default_threads

    return max(1, default_threads() // workers)


def _say(quiet: bool) -> Any:
    from .sweep import say_on_stderr

    return (lambda text: None) if quiet else say_on_stderr


def _run(plans: list[Any], engine: Any, minutes: float | None, say: Any, as_json: bool, tables: bool = True) -> None:
    from .results_cli import show_tables
    from .sweep import run_cells

    out = plans[0].out
    try:
        records = run_cells(plans, engine, minutes=minutes, say=say)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        if tables:
            show_tables(out, as_json)
        raise typer.Exit(1) from None
    if tables:
        show_tables(out, as_json)
    if len(records) < len(plans) or any(record.status != "ok" for record in records):
        raise typer.Exit(1)


def main() -> None:
    """Entry point."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    exit_with(partial(app, standalone_mode=False))
