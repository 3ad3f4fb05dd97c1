"""The verb that measures without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from .options import DEFAULT_ZOO, Device, Json, Models, Out, Plugin, Settings, check_said_once, resolve_options, split

app = typer.Typer()


@app.command()
def profile(
    models: Models = DEFAULT_ZOO,
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
        typer.Option(
            "--compile/--no-compile",
            help="Training steps by torch.compile; by default on a GPU, as CUDA graphs.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure step time and memory against length, without data or training: efficiency.csv and its pictures."""
    from .config import COMPILED, ConfigError, without_compile
    from .profile_grid import profile_lengths
    from .resolve import parse_overrides
    from .results_cli import show_efficiency

    parts = split(lengths)
    if not parts or not all(part.isdecimal() and 0 < int(part) < 2**31 for part in parts):
        raise ConfigError(f"--lengths {lengths!r}: expected numbers of tokens separated by commas, such as 1024,4096")
    named = parse_overrides(settings)
    if "data.max_len" in named:
        raise ConfigError("--set data.max_len: the lengths of a profile are those of --lengths")
    check_said_once("--batch-size", batch_size, "train.batch_size", named)
    check_said_once("--compile", compile_, "train.compile", named)
    base = resolve_options(
        [task],
        split(models),
        [0],
        protocol=protocol,
        data="embedded",
        device=device,
        settings=settings,
        plugins=plugin,
        compile_=None,
    )
    on_gpu = base[0].device == "cuda"
    training: dict[str, Any] = {}  # where --set does not say otherwise
    if named.get("train.compile", "auto") == "auto":
        training["compile"] = (on_gpu and COMPILED["cuda"]) if compile_ is None else compile_
    if batch_size or not (on_gpu or "train.batch_size" in named):
        training["batch_size"] = batch_size or 2
    configs = [
        config.model_copy(
            update={
                # How steps run is in the title of a table in any case, whichever option said it.
                "overrides": without_compile(config.overrides),
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
        show_efficiency(out, as_json)
        raise
    show_efficiency(out, as_json)
    # Out of memory is a result here; anything else that ended a cell is not.
    if any(record.status not in ("ok", "oom") for record in records):
        raise typer.Exit(1)
