"""Small configurations and records."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from lra_bench.batching import Batch
from lra_bench.config import RunConfig
from lra_bench.machine import Code, Machine
from lra_bench.records import DataRecord, Record, Result, StepProfile, run_id
from lra_bench.resolve import resolve

TINY = {
    "model.dim": 16,
    "model.mlp_dim": 16,
    "model.num_layers": 1,
    "data.max_len": 64,
    "train.steps": 12,
    "train.batch_size": 8,
    "train.warmup": 2,
    "train.eval_every": 4,
    "train.checkpoint_every": 4,
}


def tiny(model: str = "rfa", **changes: object) -> RunConfig:
    """A run of seconds on the text task. Further settings with __ for the dot: train__steps=3."""
    named = {key.replace("__", "."): value for key, value in changes.items() if key not in ("seed", "data_source")}
    options = {key: value for key, value in changes.items() if key in ("seed", "data_source")}
    return resolve("text", model, "quick", overrides={**TINY, **named}, **options)  # type: ignore[arg-type]


def padded(batch: Batch) -> Batch:
    """The last 20 tokens of every other sequence are padding."""
    masks = tuple(mask.clone() for mask in batch.padding_masks)
    for mask in masks:
        mask[::2, -20:] = True
    tokens = tuple(t.masked_fill(mask, 0) for t, mask in zip(batch.tokens, masks, strict=True))
    return dataclasses.replace(batch, tokens=tokens, padding_masks=masks)


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Records as a finished run would leave them, with chosen figures."""

    def make(
        model: str = "rfa",
        accuracy: float | None = 60.0,
        *,
        seed: int = 0,
        task: str = "text",
        step_time: float = 100.0,
        memory: float | None = 100.0,
        test_size: int = 4000,
        status: str = "ok",
        dataset: str = "imdb",
        fingerprint: str = "f" * 64,
        created: str = "2026-01-01T00:00:00+00:00",
        name: str | None = None,
        params_ratio: float = 1.0,
        protocol: str = "quick",
        reason: str = "",
    ) -> Record:
        config = resolve(task, model, protocol, seed=seed)
        if name is not None:
            config = config.model_copy(update={"model_name": name})
        digest = config.digest(fingerprint)
        result = None
        if accuracy is not None:
            correct = round(accuracy * test_size / 100)
            result = Result.of(correct, test_size, last_accuracy=accuracy, validation_accuracy=accuracy, best_step=200)
        return Record(
            run_id=run_id(config, dataset, digest),
            created=created,
            status=status,  # type: ignore[arg-type]
            reason=reason,
            config=config,
            digest=digest,
            data=DataRecord(
                task_version=1,
                dataset=dataset,
                source="test",
                fingerprint=fingerprint,
                train_size=100,
                validation_size=10,
                test_size=test_size,
            ),
            params=1000,
            params_ratio=params_ratio,
            flops_per_step=10**9,
            profile=StepProfile(
                mode="train",
                batch_size=16,
                seq_len=512,
                step_time_ms=step_time,
                step_time_iqr_ms=2.0,
                tokens_per_sec=16 * 512e3 / step_time,
                peak_memory_mb=memory,
                peak_reserved_mb=None,
            ),
            result=result,
            steps=200,
            epochs=1.5,
            train_time_s=20.0,
            loss_curve=[(100, 0.69), (200, 0.66)],
            validation_curve=[(100, 55.0 + seed), (200, 60.0 + seed)],
            machine=Machine(
                device="Test CPU",
                driver=None,
                cpu="Test CPU",
                threads=2,
                torch="2.13.0",
                python="3.11.7",
                precision="fp32",
                compiled=False,
            ),
            code=Code(commit="0123456789abcdef", dirty=False),
        )

    return make


@pytest.fixture
def fast_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer timed steps, in this process."""
    monkeypatch.setattr("lra_bench.profiler.WARMUP_STEPS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr("lra_bench.profiler.TIMED_STEPS", {"cpu": 2, "cuda": 2})


@pytest.fixture
def cells_here(monkeypatch: pytest.MonkeyPatch, fast_profile: None) -> None:
    """For `run_cell` in this process, without what a cell does to its own for good, such as limiting its memory."""
    monkeypatch.setattr("lra_bench.cell.limit_address_space", lambda: None)
    monkeypatch.setattr("lra_bench.memory.keep_freed_memory", lambda needed: None)


def files_below(folder: Path) -> set[str]:
    """Relative paths of all files."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
