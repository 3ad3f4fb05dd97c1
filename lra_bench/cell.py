"""One cell of a benchmark in a process of its own: profile, train, test, record.

Started by `lra_bench.sweep` as `python -m lra_bench.cell`, so that a crash or an out-of-memory kill ends this cell
alone and so that peak memory is that of a process which did nothing else.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import BaseModel

from tasks import Metric, Task, load_task, trivial_baselines

from .checkpoint import remove_checkpoint
from .config import RunConfig
from .isolated import deferred_interrupt, end_with_parent, limit_address_space, stop_on_sigterm
from .machine import describe_machine
from .plugins import code_now, load_plugins
from .records import DataRecord, Record, Result, Score, now, read_record, record_path, write_record
from .sharing import AtWork

if TYPE_CHECKING:
    from accelerate import Accelerator

    from .objectives import Evaluation
    from .trainer import Progress, Trainer


class CellPlan(BaseModel, extra="forbid", frozen=True):
    """What the parent has settled about a cell: `record` carries everything known before the run.

    force: run it though it is finished; tensorboard: log curves to tensorboard/ under the results folder.
    """

    out: Path
    record: Record
    force: bool = False
    tensorboard: bool = False

    @property
    def checkpoint(self) -> Path:
        return self.out / "checkpoints" / f"{self.record.run_id}.pt"

    def finished(self) -> Record | None:
        """The record of an earlier run of the very same cell that ended well."""
        earlier = read_record(record_path(self.out, self.record.run_id), Record)
        return earlier if earlier and earlier.status == "ok" and earlier.digest == self.record.digest else None


def describe_data(config: RunConfig, task: Task) -> DataRecord:
    """What the record says of the data that a run of `config` uses."""
    test = task.test.sample(config.data.test_items)
    return DataRecord(
        task_version=task.version,
        dataset=task.dataset,
        source=task.source,
        fingerprint=task.fingerprint,
        train_size=len(task.train),
        validation_size=len(task.validation.sample(config.data.validation_items)),
        test_size=len(test),
        baselines=trivial_baselines(config.task, task.train, test, task.tokenizer),
    )


def run_cell(plan: CellPlan) -> Record:
    """Run the cell and write its record, whatever happens short of the process being killed.

    Of several processes (torchrun) all run it and the first one writes; but where one fails, that one tells why, and
    the others, which hear of it as a broken connection or are told to stop, leave it at that.
    """
    outcome: dict[str, Any] = {}
    started = now()
    with AtWork(plan.record.config.device if num_processes() == 1 else None) as work:
        # Importing torch and compiling would disturb who measures as training does.
        from .conduct import LooksAhead
        from .memory import failure
        from .trainer import Diverged

        try:
            _run(plan, outcome, work)
            outcome |= {"status": "ok", "reason": ""}
        except KeyboardInterrupt:
            outcome |= {"status": "interrupted", "reason": "told to stop; the same command goes on from here"}
        except Diverged as error:
            outcome |= {"status": "diverged", "reason": str(error)}
        except LooksAhead as error:
            outcome |= {"status": "failed", "reason": str(error)}
        except (Exception, SystemExit) as error:
            outcome |= failure(error)
    record = plan.record.model_copy(update={**outcome, "created": now()})
    failed = record.status not in ("ok", "interrupted")
    if not is_main_process() and not failed:
        return record
    if record.status != "ok" and num_processes() > 1:
        # Whoever has written first in this run knows the cause.
        other = read_record(record_path(plan.out, record.run_id), Record)
        if other and other.created >= started and other.status != "ok":
            return other
    with deferred_interrupt():  # who is told to stop only now has finished
        write_record(plan.out, record)
        if record.status == "ok":
            remove_checkpoint(plan.checkpoint)
    return record


def num_processes() -> int:
    """How many processes share a run, as torchrun counts them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the first or only process of a run, as torchrun counts them."""
    return os.environ.get("RANK", "0") == "0"


def _run(plan: CellPlan, outcome: dict[str, Any], work: AtWork) -> None:
    """Fill `outcome` with fields of the record as they become known."""
    import torch
    from accelerate.utils import set_seed

    from .build import build_model
    from .step import build_accelerator
    from .trainer import Trainer

    record = plan.record
    config = record.config
    torch.set_num_threads(record.machine.threads)
    load_plugins(config.plugins)
    accelerator = build_accelerator(
        config, log_with="tensorboard" if plan.tensorboard else None, project_dir=plan.out / "tensorboard"
    )
    outcome["code"] = code = code_now(config, record.code)
    compiled, full_length = _measure(record, accelerator, outcome, work)
    task = load_task(config.task, config.data_source, config.data.max_len)
    if task.fingerprint != record.data.fingerprint:
        raise RuntimeError(f"the data from {task.source} changed since the run was planned; start it again")
    set_seed(config.seed)  # numpy's generator as well, of which an attention may draw its pattern
    model = build_model(config)
    if accelerator.process_index:  # processes share weights and the order of the data, not dropout
        torch.manual_seed(config.seed + accelerator.process_index)
    if plan.tensorboard:
        accelerator.init_trackers(record.run_id)
    trainer = Trainer(config, model, task, accelerator, plan.checkpoint, compiled, work, code.commit, full_length)
    _train(trainer, outcome)
    evaluation, last = trainer.test()
    # Not end_training: gloo at times hangs when its group is taken down while another process has left already.
    for tracker in accelerator.trackers:
        tracker.finish()
    outcome["result"] = result_of(task.metric, evaluation, last, trainer.progress)


def _measure(record: Record, accelerator: Accelerator, outcome: dict[str, Any], work: AtWork) -> tuple[bool, bool]:
    """Profile the step and try the attention.

    Before the process has touched any data: only then is its resident memory the step's own.

    Returns whether the step is compiled and whether all batches are to have the full length. Raises MemoryError where
    there is no room for a step, and LooksAhead.
    """
    from .build import count_parameters, estimate_step, parameters_ratio
    from .compiling import compiles
    from .conduct import WANT_FULL_BATCHES, check_conduct, check_torch_settings
    from .memory import check_room, keep_freed_memory
    from .profiler import profile_training
    from .torch_settings import read_settings

    config = record.config
    settings = read_settings()
    outcome |= {"params": count_parameters(config), "params_ratio": parameters_ratio(config)}
    # An attention may need real values; then its operations stay unknown, but it runs all the same. An interrupt has to
    # wait: raised among torch's fake tensors it is lost at times, or ends the process.
    estimate = None
    with deferred_interrupt() as check, suppress(Exception):
        estimate = estimate_step(config)
        outcome["flops_per_step"] = estimate.flops
    check()
    if config.device == "cpu":
        needed = estimate.memory_bytes if estimate else 0
        check_room(needed)
        limit_address_space()
        keep_freed_memory(needed)
    # A cluster's node is not the machine that planned the run.
    machine = describe_machine(config.device, config.train.precision, record.machine.threads)
    compiled = compiles(config, accelerator)
    outcome["machine"] = machine.of_processes(accelerator.num_processes, compiled)
    outcome["profile"] = profile_training(config, accelerator, compiled, work=work)
    faults = check_torch_settings(settings) + check_conduct(config, accelerator.device)
    full_length = not WANT_FULL_BATCHES.isdisjoint(faults)
    if faults:
        outcome["caveat"] = caveat = "; ".join(faults + ["all its batches have the full length"] * full_length)
        print(f"warning: {config.model_name} {caveat}", file=sys.stderr)
    return compiled, full_length


def _train(trainer: Trainer, outcome: dict[str, Any]) -> None:
    """Train to the end; `outcome` gets what has become of it also where it ends early."""
    try:
        trainer.fit()
    finally:
        progress = trainer.progress
        outcome |= {
            "steps": progress.step,
            "epochs": trainer.epochs,
            "train_time_s": progress.seconds,
            "loss_curve": progress.loss_curve,
            "validation_curve": progress.validation_curve,
        }
        if len(progress.commits) > 1:
            outcome["code"] = outcome["code"].model_copy(update={"dirty": True})
            name = trainer.config.model_name
            print(f"warning: {name} was trained at commits {', '.join(progress.commits)}", file=sys.stderr)


def result_of(metric: Metric, test: Evaluation, last: float, progress: Progress) -> Result | Score:
    """The record's figures; last: the last weights' score on test."""
    assert progress.best_score is not None
    if test.correct is not None and test.interval is not None:
        return Result(
            accuracy=test.value,
            ci95=test.interval,
            correct=test.correct,
            right=test.right,
            last_accuracy=last,
            validation_accuracy=progress.best_score,
            best_step=progress.best_step,
        )
    return Score(
        metric=metric,
        score=test.value,
        ci95=test.interval,
        summands=test.summands,
        last_score=last,
        validation_score=progress.best_score,
        best_step=progress.best_step,
    )


def run_alone(plan: CellPlan) -> Record:
    """`run_cell`, one process at a time: two sweeps over one folder share what each of them finishes.

    The operating system gives the lock up when its holder dies, however that happens.
    """
    name = plan.record.run_id
    lock = FileLock(plan.out / "runs" / f".{name}.lock")
    force = plan.force
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        print(f"  {name}: another process is at it; waiting for it to end", file=sys.stderr, flush=True)
        held, force = lock.acquire(), False
    with held:
        # Another sweep may have finished it since this one was planned.
        finished = None if force else plan.finished()
        if finished:
            remove_checkpoint(plan.checkpoint)  # whoever finished it may have been killed before this
        return finished or run_cell(plan)


def main() -> None:
    """Read the plan from standard input, run it; the exit code is 0 only for status ok."""
    stop_on_sigterm()
    end_with_parent()
    plan = CellPlan.model_validate_json(sys.stdin.read())
    try:
        ended = run_alone(plan).status
    except KeyboardInterrupt:  # told to stop before it began
        ended = "interrupted"
    sys.exit(0 if ended == "ok" else 1)


if __name__ == "__main__":
    main()
