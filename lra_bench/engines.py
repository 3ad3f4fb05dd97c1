"""Where cells run: in processes on this machine, or as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from . import ROOT
from .cell import CellPlan, is_main_process, run_alone, run_cell
from .config import ConfigError, reason_of
from .isolated import GRACE_SECONDS, Ending, Process
from .records import Record, file_identity, read_record, record_path, write_record

Started = Callable[[CellPlan], None]
Ended = Callable[[CellPlan, Record], None]


@dataclass(frozen=True)
class Engine(ABC):
    """cell_seconds: after which a single cell is told to save and stop; None: never."""

    cell_seconds: float | None = None

    @abstractmethod
    def run(self, plans: Sequence[CellPlan], seconds: float | None, started: Started, ended: Ended) -> None:
        """Run all cells; every record is on disk when `ended` is called with it.

        seconds: after which running cells are told to save and stop and no other begins. On KeyboardInterrupt running
        cells save and stop before the error goes on.
        """


def _shortest(*seconds: float | None) -> float | None:
    return min((limit for limit in seconds if limit is not None), default=None)


class Running:
    """The processes that run now, so that all of them can be told to stop; once told, no other starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self.stopped = False

    def run(self, plan: CellPlan, seconds: float | None, environment: Mapping[str, str], log: Path | None) -> Ending:
        with self._lock:
            if self.stopped:
                return Ending(1, "user")
            process = Process("lra_bench.cell", plan.model_dump_json(), environment, log)
            self._processes.add(process)
        ending = process.wait(seconds)
        with self._lock:
            self._processes.discard(process)
        return ending

    def stop(self) -> None:
        with self._lock:
            self.stopped = True
            processes = list(self._processes)
        for process in processes:
            process.tell("user")
        for process in processes:
            process.end()


def run_process(
    running: Running,
    plan: CellPlan,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Record:
    """One cell in a new process. When it dies without a record, one is written for it."""
    path = record_path(plan.out, plan.record.run_id)
    before = file_identity(path)
    ending = running.run(plan, seconds, environment or {}, log)
    record = read_record(path, Record) if file_identity(path) not in (None, before) else None
    if record is None and ending.code == 0 and not plan.force:
        record = plan.finished()  # by another sweep, before this one came to it
    if record is None:
        status, reason = ending.reason
        record = plan.record.model_copy(update={"status": status, "reason": reason})
        write_record(plan.out, record)
    return record


@dataclass(frozen=True)
class LocalEngine(Engine):
    """Processes on this machine.

    workers: cells at a time; devices: CUDA cards, as CUDA_VISIBLE_DEVICES names them, shared among the workers; log:
    what a cell prints goes to logs/RUN_ID.log under the results folder, not to the terminal.
    """

    workers: int = 1
    devices: tuple[str, ...] = ()
    log: bool = False

    def run(self, plans: Sequence[CellPlan], seconds: float | None, started: Started, ended: Ended) -> None:
        begun, running, reporting = time.monotonic(), Running(), threading.Lock()
        free: SimpleQueue[str | None] = SimpleQueue()
        for worker in range(self.workers):
            free.put(self.devices[worker % len(self.devices)] if self.devices else None)

        def run_one(plan: CellPlan) -> None:
            left = None if seconds is None else seconds - (time.monotonic() - begun)
            if running.stopped or (left is not None and left <= 0):
                return
            device, log = free.get(), plan.out / "logs" / f"{plan.record.run_id}.log" if self.log else None
            if log:
                log.parent.mkdir(parents=True, exist_ok=True)
            started(plan)
            environment = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
            try:
                record = run_process(running, plan, _shortest(left, self.cell_seconds), environment, log)
            finally:
                free.put(device)
            with reporting:
                ended(plan, record)

        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(run_one, plan) for plan in plans]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                running.stop()
                pool.shutdown(cancel_futures=True)
                raise


@dataclass(frozen=True)
class TorchrunEngine(Engine):
    """This very process, one of several that torchrun or accelerate started to share the batches of one cell."""

    def run(self, plans: Sequence[CellPlan], seconds: float | None, started: Started, ended: Ended) -> None:
        (plan,) = plans
        started(plan)
        ended(plan, run_alone(plan) if is_main_process() else run_cell(plan))


@dataclass(frozen=True)
class RayEngine(Engine):
    """Tasks of a Ray cluster, each with the CPU threads of its plan and, on CUDA, a card.

    address: of a running cluster, which gets a copy of this checkout; None: one on this machine for the time of the
    call. Cells work in a folder of the machine they run on; records come back to the caller, so that no disk has to be
    shared. A worker that dies has its cell retried, from its last checkpoint where that is the same machine.
    """

    address: str | None = None
    quiet: bool = False

    RETRIES = 3

    def run(self, plans: Sequence[CellPlan], seconds: float | None, started: Started, ended: Ended) -> None:
        if not plans:
            return
        deadline = None if seconds is None else time.time() + seconds
        ray = self._connect()
        try:
            for plan in plans:
                _check_resources(ray, plan)
            waiting = {self._submit(ray, plan, deadline): plan for plan in plans}
            try:
                while waiting:
                    (reference,), _ = ray.wait(list(waiting))
                    plan = waiting.pop(reference)
                    if record := _result(ray, reference, plan):
                        write_record(plan.out, record)
                        ended(plan, record)
            except BaseException:
                for reference in waiting:
                    ray.cancel(reference)
                if waiting:
                    ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE_SECONDS)
                raise
        finally:
            ray.shutdown()

    def _connect(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError:
            raise ConfigError("--engine ray needs Ray: pip install -e '.[ray]'") from None
        # Another machine has no checkout, or another one; a local cluster uses this very one.
        excluded = ["/.*", "/results", "/data", "/tests", "*.egg-info", "__pycache__"]
        shipped = {"working_dir": str(ROOT), "excludes": excluded} if self.address else None
        try:
            ray.init(
                address=self.address or "local",
                runtime_env=shipped,
                include_dashboard=None if self.address else False,
                log_to_driver=not self.quiet,
                logging_level=logging.WARNING,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster at {self.address!r}: {str(error).splitlines()[0]};"
                " one that asks for a token needs RAY_AUTH_MODE=token"
            ) from None
        return ray

    def _submit(self, ray: Any, plan: CellPlan, deadline: float | None) -> Any:
        config = plan.record.config
        options = {"num_cpus": plan.record.machine.threads, "num_gpus": int(config.device == "cuda")}
        plugins = [(Path(path).name, Path(path).read_text(encoding="utf-8")) for path in config.plugins]
        task = ray.remote(ray_cell).options(max_retries=self.RETRIES, **options)
        # A forced run must not find what an earlier one left on the worker, but its own retries must find theirs.
        folder = f"{plan.record.run_id}-{time.time_ns():x}" if plan.force else plan.record.run_id
        return task.remote(plan.model_dump_json(), plugins, folder, self.cell_seconds, deadline)


def ray_cell(
    plan_json: str, plugins: list[tuple[str, str]], folder: str, cell_seconds: float | None, deadline: float | None
) -> str | None:
    """One cell on a Ray worker: its record as JSON, None when the time was up before it began.

    plugins: file names and texts; folder: where it works, below the machine's temporary folder, and leaves the record,
    so that a caller that died finds it; deadline: Unix time.
    """
    left = None if deadline is None else deadline - time.time()
    if left is not None and left <= 0:
        return None
    plan = CellPlan.model_validate_json(plan_json)
    out = Path(tempfile.gettempdir()) / "lra-bench-ray" / folder
    paths = []
    for number, (name, text) in enumerate(plugins):
        paths.append(out / "plugins" / str(number) / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_text(text, encoding="utf-8")
    config = plan.record.config.model_copy(update={"plugins": tuple(map(str, paths))})
    local = plan.model_copy(update={"out": out, "record": plan.record.model_copy(update={"config": config})})
    running = Running()
    try:
        record = run_process(running, local, _shortest(left, cell_seconds))
    except KeyboardInterrupt:  # how Ray cancels
        running.stop()
        raise
    return record.model_dump_json()


def _result(ray: Any, reference: Any, plan: CellPlan) -> Record | None:
    try:
        text = ray.get(reference)
    except ray.exceptions.RayError as error:
        return plan.record.model_copy(update={"status": "failed", "reason": reason_of(error)})
    if text is None:
        return None
    # The plugins' paths are the worker's, which mean nothing here.
    return Record.model_validate_json(text).model_copy(update={"config": plan.record.config})


def _check_resources(ray: Any, plan: CellPlan) -> None:
    """Raise ConfigError for a cell that no node could ever run: Ray would wait for one in silence."""
    needs = {"CPU": plan.record.machine.threads, "GPU": int(plan.record.config.device == "cuda")}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(kind, 0) >= count for kind, count in needs.items()) for node in nodes):
        raise ConfigError(
            f"no node of the Ray cluster has {needs['CPU']} CPUs and {needs['GPU']} GPUs, which a cell needs;"
            " see --threads"
        )
