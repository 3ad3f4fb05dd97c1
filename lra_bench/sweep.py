"""A grid of cells, one process after another; every cell ends with a record."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasks import load_task

from .cell import CellPlan, describe_data
from .config import ConfigError, DataConfig, RunConfig
from .isolated import run_module
from .machine import describe_code, describe_machine
from .plugins import plugin_source
from .records import DataRecord, Record, check_writable, now, read_record, record_path, run_id, write_record
from .resolve import read_model, resolve
from .stats import decimals, format_score


def plan_cell(config: RunConfig, data: DataRecord, out: Path) -> CellPlan:
    """Everything about a cell that is known without touching its attention, which may be anybody's code."""
    digest = config.digest(data.fingerprint, plugin_source(config))
    record = Record(
        run_id=run_id(config, data.dataset, digest),
        created=now(),
        status="failed",
        reason="not run yet",
        config=config,
        digest=digest,
        data=data,
        machine=describe_machine(config.device, config.train.precision),
        code=describe_code(),
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
    overrides: dict[str, object],
) -> list[RunConfig]:
    """The grid tasks x seeds x models. An `attention.` override goes to the models that have that setting.

    Raises ConfigError for anything wrong, and for an attention setting that none of the models has.
    """
    from models import UnknownAttention, check_settings

    usable: dict[str, dict[str, object]] = {}
    for model in models:
        attention = read_model(model).attention
        usable[model] = {}
        for key, value in overrides.items():
            section, _, name = key.partition(".")
            if section == "attention" and len(models) > 1:
                try:
                    check_settings(attention, {name: value})
                except UnknownAttention as error:
                    if "no setting" in str(error):
                        continue
                    raise ConfigError(str(error)) from None
            usable[model][key] = value
    unused = [key for key in overrides if not any(key in chosen for chosen in usable.values())]
    if unused:
        raise ConfigError(f"none of the models {', '.join(models)} has the setting {unused[0]!r}")
    return [
        resolve(
            task,
            model,
            protocol,
            seed=seed,
            device=device,  # type: ignore[arg-type]
            data_source=data_source,
            plugins=plugins,
            overrides=usable[model],
        )
        for task in tasks
        for seed in seeds
        for model in models
    ]


def run_cells(
    configs: Sequence[RunConfig], out: Path, force: bool = False, minutes: float | None = None
) -> list[Record]:
    """Run every cell that has no finished record yet, in order, and return all their records.

    minutes: after which the running cell saves and stops and no further one is started. Raises OSError or DataError
    before the first run when `out` cannot be written or a task's data not be had. On Ctrl-C the cell that runs ends as
    interrupted and KeyboardInterrupt goes on to the caller.
    """
    check_writable(out / "runs")
    started = time.monotonic()
    known: dict[tuple[str, DataConfig], tuple[DataRecord, str]] = {}
    plans = []
    for config in configs:
        key = (config.task, config.data)
        if key not in known:
            task = load_task(config.task, config.data_source, config.data.max_len)
            _say(f"task {task.name}: {task.dataset}, from {task.source}")
            known[key] = describe_data(config, task), task.data
        data, chosen = known[key]
        # What "auto" stood for, so that the cell reads the same source.
        plans.append(plan_cell(config.model_copy(update={"data_source": chosen}), data, out))
    records = []
    for number, plan in enumerate(plans, 1):
        name = plan.record.run_id
        earlier = read_record(record_path(out, name), Record)
        if earlier and earlier.status == "ok" and earlier.digest == plan.record.digest and not force:
            _say(f"[{number}/{len(plans)}] {name}: finished on {earlier.created}, not run again (--force does)")
            records.append(earlier)
            continue
        left = None if minutes is None else 60 * minutes - (time.monotonic() - started)
        if left is not None and left <= 0:
            _say(f"{minutes:g} minutes are up; the same command goes on from here")
            break
        if force:
            plan.checkpoint.unlink(missing_ok=True)
        _say(f"[{number}/{len(plans)}] {name}")
        records.append(run_isolated(plan, left))
        _say(_summary(records[-1]))
    return records


def run_isolated(plan: CellPlan, seconds: float | None = None) -> Record:
    """Run one cell in a new process. When it dies without a record, one is written for it.

    seconds: after which the cell is told to save and stop. On Ctrl-C KeyboardInterrupt goes on to the caller.
    """
    path = record_path(plan.out, plan.record.run_id)
    before = path.stat().st_mtime_ns if path.exists() else None
    ending = run_module("lra_bench.cell", plan.model_dump_json(), seconds)
    record = read_record(path, Record) if path.exists() and path.stat().st_mtime_ns != before else None
    if record is None:
        status, reason = ending.reason
        record = plan.record.model_copy(update={"status": status, "reason": reason})
        write_record(plan.out, record)
    if ending.stopped == "user":
        raise KeyboardInterrupt
    return record


def _summary(record: Record) -> str:
    if record.result is None:
        return f"  {record.status}: {record.reason}"
    metric, digits = record.result.metric, decimals(record.result.metric)
    interval = ""
    if record.result.ci95:
        low, high = record.result.ci95
        interval = f" (95 % interval {low:.{digits}f} to {high:.{digits}f})"
    return (
        f"  {record.status}: test {format_score(record.result.score, metric)}{interval}"
        f" after {record.train_time_s:.0f} s of training"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
