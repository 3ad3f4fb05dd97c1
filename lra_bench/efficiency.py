"""Profile records -> step time and memory against length: efficiency.csv and efficiency.md."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import linear_regression
from typing import Any

from tasks.files import atomic_path

from .definitions import of_latest_definitions, of_latest_protocols
from .display import bare_names, distinct, how_asked, how_they_ran
from .entry import DISTURBED_PERCENT, UNSTEADY_PERCENT, doubts_of
from .leaderboard import safe_cell
from .markup import align
from .published import published_length_ratios
from .records import Mode, ProfileRecord

COLUMNS = (
    "model mode seq_len step_time_ms step_time_iqr_ms tokens_per_sec peak_memory_mb flops status device"
    " speed_vs_softmax memory_vs_softmax speed_vs_sdpa matmul_share peak_reserved_mb params reason"
    " task protocol overrides settings batch_size threads precision compiled torch python commit timed_steps"
    " other_cpu_percent other_gpu_percent"
).split()
CPU_NOTE = (
    " On a CPU torch's fused attention has no dropout, so that under a protocol with attention dropout sdpa trains"
    " through the full matrix, with torch's own dropout, which is slower than that of the other models; and steps of"
    " more than an eighth of the free memory return what they free to the system, which makes them slower."
)
UNCERTAIN_NOTE = (
    f" *: timed while other processes took more than {DISTURBED_PERCENT:.0f} % of the processors or the card, or in"
    f" steps whose quartiles are more than {UNSTEADY_PERCENT:.0f} % of the median apart; left out of exponents where"
    " two times without are left."
)
SHOWN_MODES: tuple[Mode, ...] = ("train", "inference")  # as they are shown


@dataclass(frozen=True)
class Group:
    """Profiles that may be compared: one task, protocol, batch size and machine; the latest of each cell."""

    records: tuple[ProfileRecord, ...]

    @property
    def first(self) -> ProfileRecord:
        return self.records[0]

    @property
    def measured_on(self) -> str:
        """The title but for how."""
        c, machine = self.first.config, self.first.machine
        return f"{c.task}, protocol {c.protocol_label}, batch {c.train.batch_size}, {machine.label}"

    @property
    def title(self) -> str:
        return f"{self.measured_on}, {how_asked(self.first.config)}"

    @property
    def note(self) -> str:
        """What has to be said with the figures."""
        first = self.first
        how = how_they_ran((label(r), r.config, r.machine) for r in self.records if r.mode == "train" and r.profile)
        return (
            f"Median steps on random tokens without padding; {first.machine.precision} on"
            f" {distinct(r.machine.runtime for r in self.records)}; training {how};"
            f" commit {distinct(r.code.short for r in self.records)}. Exponent: slope of the logarithms, from 2,048 on."
            f" A large matrix product reaches {_rate(first.matmul_flops_per_sec)} here."
            + bare_names(r.config for r in self.records)
            + "".join(f" {name} {caveat}." for name, caveat in self.caveats.items())
            + (UNCERTAIN_NOTE if any(map(uncertain, self.records)) else "")
            + (CPU_NOTE if first.config.device == "cpu" else "")
        )

    @property
    def caveats(self) -> dict[str, str]:
        """What has to be known of models that were measured, by label."""
        return {label(r): r.caveat for r in self.records if r.caveat}

    def mark_note(self, field: str) -> str:
        """For the title of a picture of a figure: what the mark at some of its names and its hollow points mean."""
        hollow = ["hollow: * in the table"] if any(self.in_doubt(name, field) for name in self.labels) else []
        parts = hollow + ["†: see below the table"] * bool(self.caveats)
        return f" ({'; '.join(parts)})" if parts else ""

    @property
    def labels(self) -> list[str]:
        """Names of the models, with settings where --set changed them."""
        return list(dict.fromkeys(label(r) for r in self.records))

    @property
    def lengths(self) -> list[int]:
        return sorted({r.config.data.max_len for r in self.records})

    def find(self, name: str, mode: Mode, seq_len: int) -> ProfileRecord | None:
        """The cell of one model, mode and length."""
        cells = (r for r in self.records if label(r) == name and r.mode == mode and r.config.data.max_len == seq_len)
        return next(cells, None)

    def ratio(self, record: ProfileRecord, base: str, field: str) -> float | None:
        """The record's figure over that of `base` at the same length."""
        other = self.find(base, record.mode, record.config.data.max_len)
        own, reference = (getattr(r.profile, field) if r and r.profile else None for r in (record, other))
        return own / reference if own and reference else None

    def curve(self, name: str, field: str, mode: Mode = "train") -> list[tuple[int, float]]:
        """A figure of the step profile at every length where it was measured."""
        cells = ((n, self.find(name, mode, n)) for n in self.lengths)
        return [(n, value) for n, r in cells if r and r.profile and (value := getattr(r.profile, field))]

    def in_doubt(self, name: str, field: str, mode: Mode = "train") -> set[int]:
        """At which lengths the figure is a time that may mislead."""
        cells = ((n, self.find(name, mode, n)) for n in self.lengths)
        return {n for n, r in cells if field == "step_time_ms" and r and uncertain(r)}

    def curves(self, field: str) -> dict[str, list[tuple[int, float]]]:
        """The curves of the training step by model, those without a point left out."""
        return {name: curve for name in self.labels if (curve := self.curve(name, field))}

    def exponent(self, name: str, field: str, mode: Mode = "train") -> float | None:
        """Slope of log(figure) over log(length) by least squares: None for fewer than two lengths.

        From 2,048 on, where two such lengths are there, and of times those that are not uncertain, where two are.
        """
        points = self.curve(name, field, mode)
        late, doubtful = [(n, value) for n, value in points if n >= 2048], self.in_doubt(name, field, mode)
        steady = [(n, value) for n, value in late if n not in doubtful]
        chosen = next((some for some in (steady, late) if len(some) >= 2), points)
        if len(chosen) < 2:
            return None
        x, y = ([math.log(value) for value in values] for values in zip(*chosen, strict=True))
        return linear_regression(x, y).slope


def _rate(flops_per_sec: float) -> str:
    return f"{flops_per_sec / 1e12:,.0f} TFLOP/s" if flops_per_sec >= 1e13 else f"{flops_per_sec / 1e9:,.0f} GFLOP/s"


def label(record: ProfileRecord) -> str:
    """The model's name, with its settings where --set changed them."""
    changed = record.config.attention.changed
    return f"{record.config.model_name} ({changed})" if changed else record.config.model_name


def build_groups(records: Iterable[ProfileRecord]) -> list[Group]:
    """Group profile records by what may be compared; of several records of one cell the latest counts."""

    def group_key(r: ProfileRecord) -> tuple[object, ...]:
        c = r.config
        return c.task, c.protocol, c.changed, c.train.batch_size, c.device, r.machine.label, how_asked(c)

    def cell_key(r: ProfileRecord) -> tuple[object, ...]:
        return *group_key(r), r.config.data.max_len, r.mode, label(r)

    current = of_latest_definitions(of_latest_protocols(records), lambda r: (group_key(r), label(r)))
    latest = {cell_key(r): r for r in current}
    ordered = sorted(latest.values(), key=cell_key)
    return [Group(tuple(cells)) for _, cells in groupby(ordered, key=group_key)]


def _row(group: Group, r: ProfileRecord) -> dict[str, Any]:
    p, c = r.profile, r.config
    slower, slower_than_sdpa = (group.ratio(r, base, "step_time_ms") for base in ("softmax", "sdpa"))
    memory = group.ratio(r, "softmax", "peak_memory_mb")
    share = r.flops / (p.step_time_ms / 1e3) / r.matmul_flops_per_sec if p and r.flops else None
    measured = (
        "step_time_ms step_time_iqr_ms tokens_per_sec peak_memory_mb peak_reserved_mb"
        " other_cpu_percent other_gpu_percent"
    ).split()
    figures: dict[str, float | None] = {
        **{name: getattr(p, name) if p else None for name in measured},
        "speed_vs_softmax": slower and 1 / slower,
        "memory_vs_softmax": memory,
        "speed_vs_sdpa": slower_than_sdpa and 1 / slower_than_sdpa,
        "matmul_share": share,
    }
    return {
        "model": c.model_name,
        "mode": r.mode,
        "seq_len": c.data.max_len,
        "flops": r.flops,
        "status": r.status,
        "device": r.machine.device,
        "params": r.params,
        "reason": r.reason or r.caveat,
        "task": c.task,
        "protocol": c.protocol,
        "overrides": c.changed,
        "settings": c.attention.changed,
        "batch_size": c.train.batch_size,
        "threads": r.machine.threads,
        "precision": r.machine.precision,
        "compiled": r.machine.compiled,
        "torch": r.machine.torch,
        "python": r.machine.python,
        "commit": r.code.short,
        "timed_steps": p.timed_steps if p else None,
        **{name: None if value is None else round(value, 3) for name, value in figures.items()},
    }


def efficiency_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """One row per cell with the columns COLUMNS; None where nothing was measured."""
    return [_row(group, r) for group in groups for r in group.records]


def write_efficiency(out: Path, groups: Sequence[Group]) -> str:
    """efficiency.csv and efficiency.md under `out`; returns the text of the latter."""
    with atomic_path(out / "efficiency.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: safe_cell(v) for k, v in row.items()} for row in efficiency_rows(groups))
    text = "# Efficiency\n\n" + "\n".join(_markdown(group) for group in groups)
    with atomic_path(out / "efficiency.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def _markdown(group: Group) -> str:
    """For each mode step time and memory by length; then speed and memory relative to softmax beside published ones."""
    parts = [f"## {group.title}\n"]
    for mode in SHOWN_MODES:
        what = "Training step" if mode == "train" else "Inference"
        for field, unit, form in (("step_time_ms", "ms", ",.1f"), ("peak_memory_mb", "MB", ",.0f")):
            body = []
            for name in group.labels:
                exponent = group.exponent(name, field, mode)
                cells = [_cell(group.find(name, mode, n), field, form) for n in group.lengths]
                body.append([name, *cells, "" if exponent is None else f"{exponent:.2f}"])
            header = [f"{unit} at length", *(f"{n:,}" for n in group.lengths), "exponent"]
            parts.append(f"### {what}: {'time' if unit == 'ms' else 'peak memory'}\n\n{align(header, body)}\n")
    parts.append(_relative(group))
    parts.append(group.note + "\n")
    return "\n".join(parts)


def _cell(record: ProfileRecord | None, field: str, form: str) -> str:
    if record is None or record.profile is None:
        return record.status if record else ""
    text = format(getattr(record.profile, field) or math.nan, form)
    return f"{text}*" if field == "step_time_ms" and uncertain(record) else text


def uncertain(record: ProfileRecord) -> bool:
    """Whether the time may mislead: others took much of the processors or the card, or the steps differ as much."""
    return bool(record.profile and doubts_of([record.profile]))


def _relative(group: Group) -> str:
    """Speed and memory of training relative to softmax at the lengths of the papers' tables.

    Starred where the time of either is uncertain.
    """
    lengths = [n for n in group.lengths if n in (1024, 2048, 3072, 4096)]
    if "softmax" not in group.labels or not lengths:
        return ""
    body = []
    for name in group.labels:
        cells = []
        for n in lengths:
            record, softmax = group.find(name, "train", n), group.find("softmax", "train", n)
            slower = group.ratio(record, "softmax", "step_time_ms") if record else None
            memory = group.ratio(record, "softmax", "peak_memory_mb") if record else None
            star = "*" if any(r and uncertain(r) for r in (record, softmax)) else ""
            figures = f"{1 / slower:.1f}{star} / {memory:.2f}" if slower and memory else ""
            cells.append(figures or (record.status if record else ""))
        body.append([name, *cells, "here"])
    body += [[model, *cells, "Tay et al. 2021, Table 2 (TPU)"] for model, cells in published_length_ratios(lengths)]
    header = ["speed / memory", *(f"{n:,}" for n in lengths), "source"]
    note = "Relative to the softmax transformer of the same source; other sources are other machines and other models."
    return f"### Relative to softmax, beside published ratios\n\n{align(header, body)}\n\n{note}\n"
