"""kill -9 and two commands at once over one results folder."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from lra_bench.cell import run_alone, run_cell
from lra_bench.checkpoint import save_checkpoint
from lra_bench.config import RunConfig
from lra_bench.records import Record, read_record, record_path
from tasks.files import atomic_path

from .test_cli import SETTINGS, lra_bench
from .test_sweep import plans_of

LONG = ("--set", "train.steps=500", "--set", "train.eval_every=250")


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lra_bench", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: object, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a cell of its parent's death on Linux")
def test_a_killed_sweep_leaves_no_cell_behind_and_is_gone_on_with(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["bench", "--task", "text", "--models", "linear,rfa", "--data", reviews, "--out", out, *SETTINGS, *LONG]
    sweep = start(*arguments)
    wait_for(lambda: list(out.glob("checkpoints/*-rfa-*.pt")))  # the first cell is through, the second on its way
    cells = psutil.Process(sweep.pid).children()
    assert len(cells) == 1
    sweep.send_signal(signal.SIGKILL)
    sweep.communicate()
    _, alive = psutil.wait_procs(cells, timeout=30)
    assert not alive
    (linear,) = out.glob("runs/*-linear-*.json")
    (rfa,) = out.glob("runs/*-rfa-*.json")
    finished = linear.read_bytes()
    stopped = json.loads(rfa.read_text())
    assert (stopped["status"], 0 < stopped["steps"] < 500) == ("interrupted", True)

    again = lra_bench(*arguments)
    assert again.returncode == 0, again.stderr
    assert "not run again" in again.stderr
    assert linear.read_bytes() == finished
    final = json.loads(rfa.read_text())
    assert (final["status"], final["steps"]) == ("ok", 500)
    assert final["loss_curve"][: len(stopped["loss_curve"])] == stopped["loss_curve"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a cell of its parent's death on Linux")
@pytest.mark.parametrize(
    ("number", "fake"),
    [
        (signal.SIGTERM, False),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, False, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_profile_leaves_no_cell_behind(number: signal.Signals, fake: bool, tmp_path: Path) -> None:
    """Stopped in a step that never ends, and where an error is lost: when a fake tensor goes, for its estimate."""
    plugin, started, out = tmp_path / "endless.py", tmp_path / "started", tmp_path / "out"
    plugin.write_text(
        "import os, pathlib, time, weakref\nfrom models import MultiHeadAttention, register_attention\n"
        "@register_attention('endless')\nclass Endless(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n"
        f"        if hasattr(q, 'fake_mode') == {fake}:\n"
        f"            pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n"
        f"            {'weakref.finalize(q + 1, time.sleep, 2)' if fake else 'time.sleep(3600)'}\n"
        "        return v\n"
    )
    profile = start("profile", "--plugin", plugin, "--models", "endless,linear", "--lengths", "64", "--out", out)
    wait_for(lambda: started.exists() and started.read_text())
    cell = psutil.Process(int(started.read_text()))
    profile.send_signal(number)
    _, errors = profile.communicate(timeout=60)
    _, alive = psutil.wait_procs([cell], timeout=30)
    assert not alive
    if number == signal.SIGTERM:
        assert profile.returncode == 130
        assert "Traceback" not in errors
        records = [json.loads(path.read_text()) for path in out.glob("profiles/*.json")]
        assert [(r["config"]["model_name"], r["status"]) for r in records] == [("endless", "interrupted")] * 2


def test_two_commands_at_once_share_what_each_finishes(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["run", "--task", "text", "--model", "linear", "--data", reviews, "--out", out, *SETTINGS, *LONG]
    first = start(*arguments)
    wait_for(lambda: list(out.glob("checkpoints/*.pt")))
    (cell,) = psutil.Process(first.pid).children()
    cell.suspend()  # until the second is there
    second = start(*arguments)
    assert second.stderr is not None
    patience = threading.Timer(90.0, second.kill)
    patience.start()
    told = iter(second.stderr.readline, "")
    heard = list(itertools.takewhile(lambda line: "another process is at it" not in line, told))
    patience.cancel()
    cell.resume()
    errors = [process.communicate(timeout=180)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert not any("validation" in line for line in heard)
    assert "validation" in errors[0]
    assert "validation" not in errors[1]  # it trained nothing
    (record,) = out.glob("runs/*.json")
    assert json.loads(record.read_text())["status"] == "ok"


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_the_numbers_are_those_of_an_unbroken_run(
    reviews: Path, tmp_path: Path, kills: int
) -> None:
    """SIGKILL while it starts, trains, validates or saves; dropout and redrawn features make the numbers random."""
    settings = {"train__steps": 250 * kills, "train__eval_every": 50, "train__checkpoint_every": 10}
    whole, broken = (
        plans_of(reviews, tmp_path / name, "rfa", model__dropout=0.1, **settings)[0] for name in ("whole", "broken")
    )
    # Processes forked from a server that has torch loaded start in a moment.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lra_bench.cell", "lra_bench.trainer", "lra_bench.profiler"])

    def start(plan: object) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=run_cell, args=(plan,))
        process.start()
        return process

    def saved_at() -> int:
        with suppress(FileNotFoundError):  # for a moment, when the one before is put aside
            return broken.checkpoint.stat().st_mtime_ns
        return 0

    start(whole).join()
    rng, died = random.Random(kills), []
    for _ in range(kills):
        # Of the 25 checkpoints that a kill has on the way to the end: by the clock a quick one would be there before.
        saves, before, until = rng.randrange(19), saved_at(), time.monotonic() + rng.uniform(0.0, 1.0)
        process = start(broken)
        while process.is_alive() and (saves > 0 or time.monotonic() < until):
            if (now := saved_at()) != before:
                saves, before, until = saves - 1, now, 0.0
            time.sleep(0.001)
        process.join(rng.uniform(0.0, 0.08))
        process.kill()
        process.join()
        died.append(process.exitcode == -signal.SIGKILL)
    assert all(died)
    start(broken).join()
    records = [read_record(record_path(plan.out, plan.record.run_id), Record) for plan in (whole, broken)]
    assert all(record is not None and (record.status, record.reason) == ("ok", "") for record in records)
    first, second = (record.model_dump() for record in records if record)
    for same in ("loss_curve", "validation_curve", "result", "steps"):
        assert first[same] == second[same]


def _write_for_ever(path: Path) -> None:
    content = 0
    while True:
        content += 1
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps([content] * 20_000))


def test_no_reader_sees_half_a_file_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    path = tmp_path / "record.json"
    for moment in range(10):
        writer = context.Process(target=_write_for_ever, args=(path,))
        writer.start()
        wait_for(path.exists)
        until = time.monotonic() + 0.02 * (moment + 1)
        while time.monotonic() < until:
            assert len(set(json.loads(path.read_text()))) == 1
        writer.kill()
        writer.join()
        content = json.loads(path.read_text())
        assert content == content[:1] * 20_000


def test_a_process_told_to_stop_in_a_callback_that_loses_errors_stops_at_its_first_step() -> None:
    code = """
import os, signal, weakref
from lra_bench.isolated import deferred_interrupt, stop_on_sigterm
stop_on_sigterm()
watched = {1}
weakref.finalize(watched, os.kill, os.getpid(), signal.SIGTERM)
del watched
print("not stopped yet")
try:
    with deferred_interrupt() as check:
        check()
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["not stopped yet", "stopped"]
    assert "KeyboardInterrupt" in done.stderr


def test_a_cell_told_to_stop_while_its_memory_is_estimated_is_interrupted(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(config: RunConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("what torch at times makes of an interrupt")

    monkeypatch.setattr("lra_bench.build.estimate_step", stopped)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        record = run_cell(plans_of(reviews, tmp_path, "linear")[0])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (record.status, record.steps) == ("interrupted", 0)


def test_a_cell_told_to_stop_while_it_clears_up_has_finished(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    for _ in range(2):
        save_checkpoint(plan.checkpoint, {"step": 1})
    unlink = Path.unlink

    def told_to_stop(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(signum: int, frame: object) -> None:
        raise InterruptedError("in the midst of clearing up")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("lra_bench.cell._run", lambda *_: None)
            patch.setattr(Path, "unlink", told_to_stop)
            assert run_cell(plan).status == "ok"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(plan.checkpoint.parent.iterdir())
    save_checkpoint(plan.checkpoint, {"step": 1})  # as where the process is killed at this point
    assert run_alone(plan).status == "ok"
    assert not list(plan.checkpoint.parent.iterdir())
