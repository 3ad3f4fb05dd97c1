"""Profile cells, every model at every length: each in a process of its own, every one ended with a record."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .config import RunConfig
from .isolated import Ending, run_forked, run_module
from .machine import default_threads, describe_code, describe_machine
from .plugins import plugin_source
from .profile_cell import ProfilePlan, main
from .records import Mode, ProfileRecord, check_writable, file_identity, now, read_record, record_path, write_record
from .sharing import AtWork

# What every cell would take four seconds to import: torch._dynamo is the optimisers', cli the command's own.
PRELOAD = (
    "torch._dynamo",
    *(f"lra_bench.{name}" for name in ("cli", "profile_cell", "build", "compiling", "profiler")),
)
MODES: tuple[Mode, ...] = ("inference", "train")  # in this order: the second needs more memory


def profile_lengths(configs: Sequence[RunConfig], out: Path) -> list[ProfileRecord]:
    """Profile every configuration in a fresh process, one length after the other, models next to each other.

    After a model ran out of memory its longer lengths are recorded as oom without being started. Raises OSError when
    `out` cannot be written.
    """
    import torch

    from .profiler import matmul_rate

    check_writable(out / "profiles")
    records: list[ProfileRecord] = []
    exhausted: dict[tuple[str, Mode], int] = {}
    ordered = sorted(configs, key=lambda c: c.data.max_len)
    precision = ordered[0].train.precision
    torch.set_num_threads(default_threads())
    with AtWork(ordered[0].device) as work, work.alone():
        rate = matmul_rate(torch.device(ordered[0].device), "bf16" if precision == "bf16" else "fp32")
    for number, config in enumerate(ordered, 1):
        plans = {mode: _blank(config, mode, rate) for mode in MODES}
        for mode, record in plans.items():
            if at := exhausted.get((config.model_name, mode)):
                reason = f"not started: out of memory at {at}"
                plans[mode] = record.model_copy(update={"status": "oom", "reason": reason})
        waiting = tuple(record for record in plans.values() if record.status != "oom")
        written = {mode: record_path(out, record.run_id, ProfileRecord) for mode, record in plans.items()}
        before = {mode: file_identity(path) for mode, path in written.items()}
        ending = _run(ProfilePlan(out=out, records=waiting)) if waiting else None
        stopped = ending is not None and bool(ending.stopped)
        for mode, record in plans.items():
            # Of one told to stop, what was measured before stays.
            there = stopped or file_identity(written[mode]) not in (None, before[mode])
            found = read_record(written[mode], ProfileRecord) if there else None
            if found is None:
                if ending and record.status != "oom":
                    status, reason = ending.reason
                    record = record.model_copy(update={"status": status, "reason": reason})
                write_record(out, record)
                found = record
            if found.status == "oom":
                exhausted.setdefault((config.model_name, mode), config.data.max_len)
            records.append(found)
        if stopped:
            raise KeyboardInterrupt
        print(f"[{number}/{len(ordered)}] {_summary(records[-len(MODES) :])}", file=sys.stderr, flush=True)
    return records


def _run(plan: ProfilePlan) -> Ending:
    """Carry the plan out in a fresh process."""
    if sys.platform == "linux":
        with suppress(OSError):  # of a temporary folder whose name is too long for a socket, say
            return run_forked(main, plan.model_dump_json(), PRELOAD)
    return run_module("lra_bench.profile_cell", plan.model_dump_json())


def _blank(config: RunConfig, mode: Mode, rate: float) -> ProfileRecord:
    source = plugin_source(config)
    digest = config.digest(mode, source)
    name = f"{config.task}-{config.protocol}-{config.model_name}-{mode}-{config.data.max_len}-{digest[:10]}"
    return ProfileRecord(
        run_id=re.sub(r"[^A-Za-z0-9._-]+", "_", name),
        created=now(),
        status="failed",
        reason="not run yet",
        config=config,
        mode=mode,
        matmul_flops_per_sec=rate,
        machine=describe_machine(config.device, config.train.precision),
        code=describe_code(source),
    )


def _summary(records: Sequence[ProfileRecord]) -> str:
    parts = []
    for r in records:
        p = r.profile
        figures = f"{p.step_time_ms:,.1f} ms, {p.peak_memory_mb or 0:,.0f} MB" if p else f"{r.status} ({r.reason})"
        parts.append(f"{r.mode} {figures}")
    config = records[0].config
    return f"{config.model_name} at {config.data.max_len}: {'; '.join(parts)}"
