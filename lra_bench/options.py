"""Options that several verbs share, and the runs that they ask for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from .config import RunConfig

# All but RFA's arc-cosine twin.
DEFAULT_ZOO = "softmax,sdpa,rfa,linformer,performer,reformer,linear"

Tasks = Annotated[str, typer.Option(help="Task, or several separated by commas; by default the Long Range Arena's.")]
Models = Annotated[str, typer.Option(help="Models, separated by commas.")]
Seeds = Annotated[int, typer.Option(min=1, max=10_000, help="Number of seeds, counted from 0.")]
Protocol = Annotated[
    Optional[str], typer.Option(help="Protocol; by default compact on a GPU and quick without one.")  # noqa: UP045
]
Data = Annotated[
    str,
    typer.Option(
        help="auto, hub, embedded, or a folder or file with the data; FOLDER,listops=embedded: another one for a task."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Results folder; records go to its runs/.")]
Settings = Annotated[
    list[str], typer.Option("--set", help="Override a setting: train.steps=200, attention.num_features=32, …")
]
Grid = Annotated[
    list[str],
    typer.Option(
        help="Several values of a setting, each a cell of its own: attention.num_features=32,64,128; more than one"
        " --grid: all combinations."
    ),
]
Compile = Annotated[
    Optional[bool],  # noqa: UP045
    typer.Option("--compile/--no-compile", help="torch.compile; by default for long runs, on a GPU as CUDA graphs."),
]
Plugin = Annotated[list[Path], typer.Option(help="A .py file that registers attentions or tasks; may be repeated.")]
Minutes = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(min=0.1, help="Save and stop after so many minutes; the same command goes on from there."),
]
Force = Annotated[bool, typer.Option("--force", help="Run again what is finished already.")]
Threads = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="CPU threads of a cell; by default torch's own number, divided among the workers."),
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Log curves for TensorBoard to OUT/tensorboard.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="No progress; what cells print goes to OUT/logs. Errors are still printed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON, for scripts.")]


def show_help(ctx: typer.Context) -> None:
    """Callback of a group of verbs: print its help where none is named."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def split(text: str) -> list[str]:
    """The names in a list separated by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def find_device(text: str) -> str:
    """cpu or cuda, which auto is where there is a card. Raises ConfigError for another text, or cuda without a card.

    Where auto is cpu though a card's driver is installed, a line on stderr says so.
    """
    from .config import ConfigError

    if text not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {text!r}; expected auto, cpu or cuda")
    if text == "cpu":
        return text
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if text == "cuda":
        raise ConfigError("device cuda: torch sees no CUDA card here; use --device cpu")
    # Who hides the cards means it.
    if shutil.which("nvidia-smi") and "CUDA_VISIBLE_DEVICES" not in os.environ:
        print(
            f"warning: nvidia-smi is installed, but torch {torch.__version__} sees no CUDA card: the driver may be too"
            " old for it, or this torch is a build for CPUs; running on the CPU",
            file=sys.stderr,
        )
    return "cpu"


def check_said_once(option: str, value: object, setting: str, overrides: Mapping[str, object]) -> None:
    """Raise ConfigError for an option that is given, so that value is not None, beside --set of its setting."""
    from .config import ConfigError

    if value is not None and setting in overrides:
        raise ConfigError(f"{option} and --set {setting} say the same thing; give one of them")


def arena() -> list[str]:
    """The tasks of the Long Range Arena: those that label sequences."""
    from tasks import list_tasks, task_spec

    return [name for name in list_tasks() if task_spec(name).kind == "classification"]


def resolve_options(
    tasks: list[str],
    models: list[str],
    seeds: Iterable[int],
    *,
    protocol: str | None,
    data: str,
    device: str,
    settings: list[str],
    plugins: list[Path],
    compile_: bool | None,
    grid: Sequence[str] = (),
) -> list[RunConfig]:
    """The runs that the options ask for, names and values checked. Raises ConfigError, quickly where it can."""
    from .config import ConfigError
    from .plugins import load_plugins
    from .protocols import read_protocol
    from .resolve import parse_grid, parse_overrides

    if not models:
        raise ConfigError("no model given; see lra-bench list")
    overrides, varied = parse_overrides(settings), parse_grid(grid)
    for key in varied:
        check_said_once("--grid", True, key, overrides)
    check_said_once("--compile", compile_, "train.compile", overrides | varied)
    if compile_ is not None:
        overrides["train.compile"] = compile_
    if protocol:
        read_protocol(protocol)
    device = find_device(device)
    from tasks import task_spec

    from .sweep import resolve_cells

    if changed := load_plugins(map(str, plugins)):
        print(f"warning: a plugin changes torch's {', '.join(changed)}; set back, as it is for all", file=sys.stderr)
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
        overrides=[overrides | dict(zip(varied, values, strict=True)) for values in product(*varied.values())],
    )
