"""Records: written whole, read strictly."""

import json
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from lra_bench.config import ConfigError
from lra_bench.records import Record, read_record, read_records, record_path, write_record
from lra_bench.stats import wilson_interval


def test_round_trip(make_record: Callable[..., Record], tmp_path: Path) -> None:
    record = make_record()
    path = write_record(tmp_path, record)
    assert path == record_path(tmp_path, record.run_id)
    assert read_record(path, Record) == record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {**c, "schema_version": 99}, "has schema version 99; this program reads 1"),
        (lambda c: {k: v for k, v in c.items() if k != "digest"}, "not a valid record (digest: field required)"),
        (lambda c: {**c, "surprise": 1}, "surprise: extra inputs are not permitted"),
        (lambda c: {**c, "status": "great"}, "not a valid record (status"),
        (lambda c: [c], "has schema version None"),
        (lambda c: {**c, "epochs": math.inf}, "epochs: input should be a finite number"),
        (
            lambda c: {**c, "profile": {**c["profile"], "step_time_ms": 0}},
            "step_time_ms: input should be greater than 0",
        ),
        (lambda c: {**c, "result": {**c["result"], "accuracy": 99.5}}, "are not 99.5 %"),
        (lambda c: {**c, "result": {**c["result"], "last_accuracy": 101}}, "less than or equal to 100"),
    ],
)
def test_foreign_records_are_named_and_left_out(
    make_record: Callable[..., Record],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[..., object],
    message: str,
) -> None:
    good, bad = write_record(tmp_path, make_record()), tmp_path / "runs" / "bad.json"
    bad.write_text(json.dumps(change(json.loads(good.read_text()))))
    assert [r.run_id for r in read_records(tmp_path, Record)] == [good.stem]
    error = capsys.readouterr().err
    assert str(bad) in error
    assert message in error


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b"[1, 2"])
def test_damaged_records_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x.json").write_bytes(content)
    assert read_records(tmp_path, Record) == []
    assert "x.json" in capsys.readouterr().err


def test_no_folder_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a results folder"):
        read_records(tmp_path / "nowhere", Record)


def test_failed_write_leaves_nothing_half_written(
    make_record: Callable[..., Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record(accuracy=60.0)
    write_record(tmp_path, record)

    def full(self: Path, text: str, **_: object) -> int:
        self.write_bytes(text.encode()[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match=r"No space left on device: '.*runs/.*\.json'"):
            write_record(tmp_path, record.model_copy(update={"steps": 1}))
    assert read_records(tmp_path, Record) == [record]
    assert len(list((tmp_path / "runs").iterdir())) == 1


def _write_many(out: Path, record: Record, first: int) -> None:
    for number in range(first, first + 10):
        write_record(out, record.model_copy(update={"run_id": f"run-{number}"}))
        write_record(out, record)


def test_eight_writers_lose_nothing(make_record: Callable[..., Record], tmp_path: Path) -> None:
    record = make_record()
    with ProcessPoolExecutor(8, get_context("forkserver")) as pool:
        for future in [pool.submit(_write_many, tmp_path, record, 10 * i) for i in range(8)]:
            future.result()
    assert {r.run_id for r in read_records(tmp_path, Record)} == {record.run_id, *(f"run-{i}" for i in range(80))}


def test_wilson_interval_against_known_values() -> None:
    """Values of Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20 and 1 of 29."""
    for correct, count, low, high in (
        (81, 263, 25.53, 36.62),
        (15, 148, 6.24, 16.05),
        (0, 20, 0.0, 16.11),
        (1, 29, 0.61, 17.18),
    ):
        assert wilson_interval(correct, count) == pytest.approx((low, high), abs=0.01)
    assert wilson_interval(20, 20)[1] == pytest.approx(100)
