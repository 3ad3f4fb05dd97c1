"""One run = one JSON record, written atomically and read strictly."""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tasks import Metric
from tasks.files import atomic_path

from .config import ConfigError, RunConfig
from .machine import Code, Machine
from .packing import unpack_bits, unpack_numbers
from .stats import format_score, score_of_sums, wilson_interval

SCHEMA_VERSION = 1

Status = Literal["ok", "oom", "diverged", "failed", "interrupted"]
Mode = Literal["train", "inference"]
Percent = Annotated[float, Field(ge=0.0, le=100.0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StepProfile(_Part):
    """One measured cell. Times in milliseconds, memory in MiB.

    timed_steps: how many the median and the interquartile range are of; peak_memory_mb: the most that tensors held at
    once, as torch's allocators tell, parameters and optimiser included; peak_reserved_mb: on CUDA what the caching
    allocator held, on a CPU the growth of the process's resident memory; other_cpu_percent: of the time of the
    processors that it may use, while steps were timed, what did not go to this process (on a CPU, None for less than
    half a second); other_gpu_percent: of the second after that, how long the card was at work for others (None where
    nothing tells).
    """

    mode: Mode
    batch_size: PositiveInt
    seq_len: PositiveInt
    step_time_ms: PositiveFloat
    step_time_iqr_ms: NonNegativeFloat
    timed_steps: PositiveInt | None = None
    tokens_per_sec: PositiveFloat
    peak_memory_mb: NonNegativeFloat | None
    peak_reserved_mb: NonNegativeFloat | None
    other_cpu_percent: NonNegativeFloat | None = None
    other_gpu_percent: NonNegativeFloat | None = None

    @property
    def unsteady_percent(self) -> float:
        """The interquartile range of the step time, relative to the median."""
        return 100 * self.step_time_iqr_ms / self.step_time_ms


class DataRecord(_Part):
    """The data a run saw. fingerprint: SHA-256 of the packed arrays; the sizes count examples used.

    baselines: the task's metric, on the same test examples, of guesses that need no model.
    """

    task_version: int
    dataset: str
    source: str
    fingerprint: str
    train_size: PositiveInt
    validation_size: PositiveInt
    test_size: PositiveInt
    baselines: dict[str, float] = {}


class Result(_Part):
    """Accuracies in percent. accuracy: test, of the weights with the best validation accuracy, at `best_step`;
    last_accuracy: test, of the last weights; ci95: Wilson interval of `accuracy`; right: which test examples, in
    their order, were predicted right, see `packing.pack_bits`."""

    accuracy: Percent
    ci95: tuple[Percent, Percent]
    correct: NonNegativeInt
    right: str = ""
    last_accuracy: Percent
    validation_accuracy: Percent
    best_step: NonNegativeInt

    @property
    def metric(self) -> Metric:
        return "accuracy"

    @property
    def score(self) -> float:
        return self.accuracy

    @property
    def last_score(self) -> float:
        return self.last_accuracy

    def items(self, count: int) -> NDArray[np.float64] | None:
        """Of each of `count` test examples (1 where it was predicted right, 1), `[count, 2]`; see Score."""
        return np.stack([unpack_bits(self.right, count), np.ones(count)], axis=1) if self.right else None

    @classmethod
    def of(cls, correct: int, count: int, **rest: float | int) -> Result:
        """A result from counts of test examples."""
        low, high = wilson_interval(correct, count)
        return cls(accuracy=100 * correct / count, ci95=(low, high), correct=correct, **rest)  # type: ignore[arg-type]


class Score(_Part):
    """As Result, of a task that is not scored by accuracy.

    ci95: None where one item alone was scored; summands: what each test item adds to the sums that the score is of (see
    `stats.score_of_sums`), packed by `packing.pack_numbers`.
    """

    metric: Metric
    score: float
    ci95: tuple[float, float] | None
    summands: str = ""
    last_score: float
    validation_score: float
    best_step: NonNegativeInt

    def items(self, count: int) -> NDArray[np.float64] | None:
        """The summands of `count` test items, `[count, summands]`; None in a record that does not keep them.

        Raises ValueError where they are not of so many.
        """
        return unpack_numbers(self.summands, count) if self.summands else None


class Record(_Part):
    """One run. Curves are (step, value): mean training loss, and the task's metric on validation.

    reason: why the status is not ok, in one line; caveat: what has to be known of the attention, likewise;
    params_ratio: parameters over those of `softmax` under the same configuration; flops_per_step: of matrix products;
    train_time_s: training and validation.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created: str
    status: Status
    reason: str = ""
    caveat: str = ""
    config: RunConfig
    digest: str
    data: DataRecord
    params: PositiveInt | None = None
    params_ratio: PositiveFloat | None = None
    flops_per_step: NonNegativeInt | None = None
    profile: StepProfile | None = None
    result: Result | Score | None = None
    steps: NonNegativeInt = 0
    epochs: NonNegativeFloat = 0.0
    train_time_s: NonNegativeFloat = 0.0
    loss_curve: list[tuple[int, float]] = []
    validation_curve: list[tuple[int, float]] = []
    machine: Machine
    code: Code

    @field_validator("result")
    @classmethod
    def _check_items(cls, result: Result | Score | None, info: ValidationInfo) -> Result | Score | None:
        if result and "data" in info.data:
            count = info.data["data"].test_size
            items = result.items(count)
            if isinstance(result, Result) and not math.isclose(result.accuracy, 100 * result.correct / count):
                raise ValueError(f"{result.correct} of {count} are not {result.accuracy} %")
            if items is not None:
                with np.errstate(all="ignore"):  # a mean of nothing is no score either
                    told = float(score_of_sums(items.sum(axis=0), result.metric))
                if not math.isclose(told, result.score, rel_tol=1e-5, abs_tol=1e-6):
                    raise ValueError(f"its test items make {format_score(told, result.metric)}, not {result.score}")
        return result


class ProfileRecord(_Part):
    """One model at one length in one mode, without training.

    reason, caveat: as of a Record; flops: of the matrix products of a step; matmul_flops_per_sec: what one large
    product reached on the same device.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created: str
    status: Status
    reason: str = ""
    caveat: str = ""
    config: RunConfig
    mode: Mode
    params: PositiveInt | None = None
    flops: NonNegativeInt | None = None
    matmul_flops_per_sec: PositiveFloat
    profile: StepProfile | None = None
    machine: Machine
    code: Code


AnyRecord = TypeVar("AnyRecord", Record, ProfileRecord)
FOLDERS: dict[type[Record] | type[ProfileRecord], str] = {Record: "runs", ProfileRecord: "profiles"}


def run_id(config: RunConfig, dataset: str, digest: str) -> str:
    """A name for files: what a person looks for first, then enough of the digest to be unique."""
    text = f"{config.task}-{dataset}-{config.protocol}-{config.model_name}-s{config.seed}-{digest[:10]}"
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def record_path(out: Path, name: str, schema: type[Record] | type[ProfileRecord] = Record) -> Path:
    """Where the record of run `name` lies under the results folder `out`."""
    return out / FOLDERS[schema] / f"{name}.json"


def file_identity(path: Path) -> tuple[int, int] | None:
    """Changes when a file is replaced, even while the clock stands still or runs backwards; None without one."""
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def check_writable(folder: Path) -> None:
    """Make `folder` and find out now, not after an hour of training, whether files can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def write_record(out: Path, record: Record | ProfileRecord) -> Path:
    """Store `record` under `out`, replacing an earlier one of the same run."""
    path = record_path(out, record.run_id, type(record))
    with atomic_path(path) as temporary:
        temporary.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_record(path: Path, schema: type[AnyRecord]) -> AnyRecord | None:
    """The record at `path`; None, with a line on stderr, when there is none of this schema."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA_VERSION:
            reason = f"has schema version {version}; this program reads {SCHEMA_VERSION}"
        else:
            return schema.model_validate(content)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        reason = f"is not a valid record ({'.'.join(map(str, first['loc']))}: {message[0].lower()}{message[1:]})"
    except (OSError, ValueError, RecursionError) as error:
        reason = f"cannot be read ({str(error).splitlines()[0]})"
    print(f"warning: {path} {reason}; it is left out", file=sys.stderr)
    return None


def read_records(out: Path, schema: type[AnyRecord]) -> list[AnyRecord]:
    """All readable records of a kind under the folder `out`. Raises ConfigError when there is no such folder."""
    if not out.is_dir():
        raise ConfigError(f"{str(out)!r} is not a results folder; run lra-bench bench first")
    paths = sorted((out / FOLDERS[schema]).glob("*.json"))
    return [record for path in paths if (record := read_record(path, schema))]
