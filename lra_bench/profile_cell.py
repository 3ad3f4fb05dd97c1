"""One model at one length in a fresh process, started by `profile_grid`."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from .isolated import deferred_interrupt, end_with_parent, limit_address_space, stop_on_sigterm
from .plugins import code_now, load_plugins
from .records import Mode, ProfileRecord, now, write_record
from .sharing import AtWork

# A cell that takes longer than this for its timed steps stops after three of them, or fewer; see time_steps.
PROFILE_SECONDS = 3.0


class ProfilePlan(BaseModel, extra="forbid", frozen=True):
    """Records to be completed, one per mode, in the order in which they are to be measured."""

    out: Path
    records: tuple[ProfileRecord, ...]


def profile_cell(plan: ProfilePlan, work: AtWork) -> None:
    """Measure and write every record of the plan; what cannot be measured is written with status and reason."""
    import torch

    from .build import Estimate, count_parameters, estimate_step
    from .compiling import compiles
    from .conduct import LooksAhead, check_conduct, check_torch_settings
    from .memory import check_room, failure, keep_freed_memory
    from .profiler import profile_inference, profile_training
    from .step import build_accelerator
    from .torch_settings import read_settings

    config = plan.records[0].config
    torch.set_num_threads(plan.records[0].machine.threads)
    load_plugins(config.plugins)
    accelerator = build_accelerator(config)
    settings = read_settings()
    estimates: dict[Mode, Estimate] = {}
    for record in plan.records:
        # An attention may need real values; then its operations stay unknown, but it is measured all the same. An
        # interrupt has to wait, as in a cell that trains.
        with deferred_interrupt() as check, suppress(Exception):
            estimates[record.mode] = estimate_step(config, record.mode)
        check()
    if config.device == "cpu":
        limit_address_space()
        keep_freed_memory(max((e.memory_bytes for e in estimates.values()), default=0))
    caveat: str | None = None
    for record in plan.records:
        outcome: dict[str, object] = {"params": count_parameters(config)}
        try:
            code_now(config, record.code)
            if estimate := estimates.get(record.mode):
                outcome["flops"] = estimate.flops
                if config.device == "cpu":
                    check_room(estimate.memory_bytes)
            if record.mode == "train":
                compiled = compiles(config, accelerator, full=True)
                outcome["machine"] = record.machine.model_copy(update={"compiled": compiled})
                outcome["profile"] = profile_training(config, accelerator, compiled, True, PROFILE_SECONDS, work)
            else:
                outcome["profile"] = profile_inference(config, accelerator, PROFILE_SECONDS, work)
            if caveat is None:  # only now: it takes memory of its own
                caveat = "; ".join(check_torch_settings(settings) + check_conduct(config, accelerator.device))
            outcome |= {"caveat": caveat, "status": "ok", "reason": ""}
        except LooksAhead as error:
            outcome |= {"profile": None, "status": "failed", "reason": str(error)}
        except Exception as error:
            outcome |= failure(error)
            accelerator.free_memory()
            torch.compiler.reset()
        gc.collect()  # a failed step's tensors hang on its traceback, which is gone only now
        write_record(plan.out, record.model_copy(update={**outcome, "created": now()}))


def main(plan: str) -> None:
    """`profile_cell` with the plan as JSON, until it is told to stop."""
    stop_on_sigterm()
    end_with_parent()
    try:
        parsed = ProfilePlan.model_validate_json(plan)
        with AtWork(parsed.records[0].config.device) as work:
            profile_cell(parsed, work)
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.stdin.read())
