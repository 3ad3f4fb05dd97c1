"""A grid of cells: planned, run by an engine, every one ended with a record."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks import list_tasks, load_task

from .cell import CellPlan, describe_data, is_main_process, num_processes
from .checkpoint import remove_checkpoint
from .config import ConfigError, DataConfig, RunConfig
from .engines import Engine
from .machine import describe_code, describe_machine
from .plugins import plugin_source
from .protocols import read_model
from .records import DataRecord, Record, check_writable, now, read_record, record_path, run_id
from .resolve import ATTENTION_SECTIONS, resolve
from .stats import decimals, format_score

Say = Callable[[str], None]


def plan_cell(config: RunConfig, data: DataRecord, out: Path, threads: int | None = None) -> CellPlan:
    """Everything about a cell that is known without touching its attention, which may be anybody's code.

    threads: of the CPU; by default what torch takes.
    """
    source = plugin_source(config)
    digest = config.digest(data.fingerprint, source, data.task_version)
    record = Record(
        run_id=run_id(config, data.dataset, digest),
        created=now(),
        status="failed",
        reason="not run yet",
        config=config,
        digest=digest,
        data=data,
        machine=describe_machine(config.device, config.train.precision, threads),
        code=describe_code(source),
    )
    return CellPlan(out=out, record=record)


def resolve_cells(
    tasks: Sequence[str],
    models: Sequence[str],
    protocol: str,
    seeds: Sequence[int],
    *,
    device: str,
    data_source: str,
    plugins: tuple[str, ...],
    overrides: Sequence[dict[str, object]],
) -> list[RunConfig]:
    """The grid tasks x seeds x models x overrides, cells that come to the same once.

    data_source: see `source_for`; overrides: as from `parse_overrides`, all of the same keys. One of `attention.` or
    `cross.` goes to the models that have that setting. Raises ConfigError for anything wrong, and for an attention
    setting that none of the models has.
    """
    concerned = {key: [m for m in models if len(models) == 1 or _concerns(key, m)] for key in overrides[0]}
    if unused := [key for key, able in concerned.items() if not able]:
        raise ConfigError(f"none of the models {', '.join(models)} has the setting {unused[0]!r}")
    sources = {task: source_for(task, data_source) for task in tasks}
    configs = [
        resolve(
            task,
            model,
            protocol,
            seed=seed,
            device=device,  # type: ignore[arg-type]
            data_source=sources[task],
            plugins=plugins,
            overrides={key: value for key, value in chosen.items() if model in concerned[key]},
        )
        for task in tasks
        for seed in seeds
        for model in models
        for chosen in overrides
    ]
    return list({config.model_dump_json(): config for config in configs}.values())


def _concerns(override: str, model: str) -> bool:
    """Whether the model has what an override sets. Raises ConfigError."""
    from models import UnknownAttention
    from models.registry import attention_settings

    section, _, name = override.partition(".")
    if section not in ATTENTION_SECTIONS:
        return True
    try:
        return name in attention_settings(read_model(model).attention).model_fields
    except UnknownAttention as error:
        raise ConfigError(str(error)) from None


def source_for(task: str, data: str) -> str:
    """Where the data of `task` comes from: `data,listops=embedded` names a folder for every task but ListOps.

    Raises ConfigError for two sources where one is expected.
    """
    if Path(data).exists():  # whatever its name looks like
        return data
    found: dict[str, str] = {}
    for part in data.split(","):
        name, equals, source = part.partition("=")
        key, source = (name.strip(), source) if equals and name.strip() in list_tasks() else ("", part)
        if not source.strip() or key in found:
            raise ConfigError(f"--data {data!r}: expected one source, and task=source for tasks that have another")
        found[key] = source.strip()
    return found.get(task, found.get("", "auto"))


def plan_cells(
    configs: Sequence[RunConfig],
    out: Path,
    *,
    threads: int | None = None,
    force: bool = False,
    tensorboard: bool = False,
    say: Say,
) -> list[CellPlan]:
    """Load every task once and settle all cells. Raises DataError.

    threads: of the CPU, by default what torch takes; force, tensorboard: see CellPlan.
    """
    known: dict[tuple[str, DataConfig], tuple[DataRecord, str]] = {}
    plans = []
    for config in configs:
        key = (config.task, config.data)
        if key not in known:
            task = load_task(config.task, config.data_source, config.data.max_len)
            say(f"task {task.name}: {task.dataset}, from {task.source}")
            known[key] = describe_data(config, task), task.data
        data, chosen = known[key]
        # What "auto" stood for, so that the cell reads the same source.
        config = config.model_copy(update={"data_source": chosen})
        plan = plan_cell(config, data, out, threads)
        plans.append(plan.model_copy(update={"force": force, "tensorboard": tensorboard}))
    short = (
        f"warning: {c.task}: {c.train.steps:,} steps end within the {c.train.warmup:,} of warm-up; set train.warmup too"
        for c in configs
        if c.train.ends_warming_up
    )
    for warning in dict.fromkeys(short):
        say(warning)
    return plans


def run_cells(plans: Sequence[CellPlan], engine: Engine, *, minutes: float | None = None, say: Say) -> list[Record]:
    """Run every cell that has no finished record yet and return the records of all that ended.

    minutes: after which running cells save and stop and no other begins. Raises OSError before the first run when the
    results folder cannot be written. On Ctrl-C the running cells end as interrupted and KeyboardInterrupt goes on to
    the caller.
    """
    for out in {plan.out for plan in plans}:
        check_writable(out / "runs")
    started = time.monotonic()
    names = _names(plans)
    records, waiting = [], []
    for plan in plans:
        _set_aside(record_path(plan.out, plan.record.run_id))
        earlier = None if plan.force else plan.finished()
        if earlier:
            then, now = earlier.code.short, plan.record.code
            # Only a plugin's text decides what is run anew; an edit of the code itself has to be seen.
            at = f"commit {then}" + (f", the code is now at {now.short}" if now.dirty or now.short != then else "")
            say(f"{names[earlier.run_id]}: finished on {earlier.created} at {at}; not run again (--force does)")
            records.append(earlier)
            continue
        if plan.force:
            remove_checkpoint(plan.checkpoint)
        waiting.append(plan)
    done = len(records)

    def ended(plan: CellPlan, record: Record) -> None:
        records.append(record)
        text = f"{names[plan.record.run_id]}: {_summary(record)}"
        if left := len(plans) - len(records):
            seconds = (time.monotonic() - started) / (len(records) - done) * left
            text += f"; {left} to go, about {max(1, round(seconds / 60))} min"
        say(text)

    engine.run(
        waiting,
        None if minutes is None else 60 * minutes,
        started=lambda plan: say(names[plan.record.run_id]),
        ended=ended,
    )
    if len(records) < len(plans):
        say("the time is up; the same command goes on from here")
    return records


def _names(plans: Sequence[CellPlan]) -> dict[str, str]:
    """What progress calls every run: its number, its name and, where those of a grid differ, its settings."""
    settings = [plan.record.config.settings_label for plan in plans]
    shown = [f" ({text})" if text and len(set(settings)) > 1 else "" for text in settings]
    ids = [plan.record.run_id for plan in plans]
    return {run: f"[{n}/{len(ids)}] {run}{text}" for n, (run, text) in enumerate(zip(ids, shown, strict=True), 1)}


def _set_aside(path: Path) -> None:
    """Keep what cannot be read, damaged or by a newer program, from being overwritten."""
    if is_main_process() and path.exists() and read_record(path, Record) is None:
        path.replace(path.with_name(f"{path.name}.unreadable"))


def _summary(record: Record) -> str:
    if record.result is None:
        fewer = record.config.train.examples_at_once // num_processes() // 2
        way_out = f"; --set train.micro_batch_size={fewer} computes the same step in parts"
        return f"{record.status}: {record.reason}{way_out if record.status == 'oom' and fewer else ''}"
    metric, digits = record.result.metric, decimals(record.result.metric)
    interval = ""
    if record.result.ci95:
        low, high = record.result.ci95
        interval = f" (95 % interval {low:.{digits}f} to {high:.{digits}f})"
    return (
        f"{record.status}: test {format_score(record.result.score, metric)}{interval}"
        f" after {record.train_time_s:.0f} s of training"
    )


def say_on_stderr(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)
