"""Who measures has the device alone; who trains pauses meanwhile, and nobody waits for ever."""

import errno
import fcntl
import multiprocessing
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import psutil
import pytest
from accelerate import Accelerator

from lra_bench import profiler, sharing
from lra_bench.build import build_model
from lra_bench.profiler import Timing, profile_inference, profile_training
from lra_bench.sharing import AtWork
from lra_bench.trainer import Diverged, Trainer
from tasks import load_task

from .conftest import tiny
from .test_cli import SETTINGS
from .test_profile_grid import SMALL
from .test_survival import LONG, wait_for
from .test_survival import start as start_command

CONTEXT = multiprocessing.get_context("fork")


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sharing, "LOOK_EVERY_SECONDS", 0.0)


@pytest.fixture
def processes() -> Iterator[list[multiprocessing.process.BaseProcess]]:
    started: list[multiprocessing.process.BaseProcess] = []
    yield started
    for process in started:
        process.kill()
        process.join()


def work(steps: Connection) -> None:
    """Training: a step is a message."""
    with AtWork("cpu") as at_work:
        while True:
            steps.send(time.monotonic())
            at_work.give_way(nothing)
            time.sleep(0.005)  # so that the pipe, which nobody reads meanwhile, is not full for many seconds


def prepare(told: Connection) -> None:
    with AtWork("cpu"):
        told.send(time.monotonic())
        time.sleep(0.5)
        told.send(time.monotonic())


def measure(told: Connection, seconds: float) -> None:
    with AtWork("cpu") as at_work, at_work.alone():
        told.send(time.monotonic())
        time.sleep(seconds)
        told.send(time.monotonic())


def start(
    processes: list[multiprocessing.process.BaseProcess], target: Callable[..., None], *arguments: object
) -> Connection:
    """Runs it; returns where its messages arrive."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    processes.append(process)
    return here


def received(messages: Connection) -> list[float]:
    """What has come so far."""
    found = []
    while messages.poll():
        found.append(messages.recv())
    return found


def test_nobody_works_while_somebody_measures(processes: list[multiprocessing.process.BaseProcess]) -> None:
    workers = [start(processes, work) for _ in range(3)]
    first = [messages.recv() for messages in workers]
    measured = [start(processes, measure, 0.3) for _ in range(2)]
    spans = [(messages.recv(), messages.recv()) for messages in measured]
    time.sleep(0.3)
    (_, end), (begin, _) = sorted(spans)
    assert end <= begin  # one after the other
    for messages, began in zip(workers, first, strict=True):
        steps = received(messages)
        assert not any(begin < step < end for step in steps for begin, end in spans)
        assert any(began < step < min(spans)[0] for step in steps)  # worked before
        assert any(step > max(spans)[1] for step in steps)  # and goes on after


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_who_trains_is_waited_for(device: Literal["cpu", "cuda"], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_device_name", str)
    synchronized: list[None] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda: synchronized.append(None))
    order: list[str] = []

    def measuring() -> None:
        with AtWork(device) as at_work, at_work.alone():
            order.append("measured")

    with AtWork(device) as at_work:
        at_work.give_way(nothing)
        other = threading.Thread(target=measuring, daemon=True)
        other.start()
        time.sleep(0.3)
        order.append("step ended")
        at_work.give_way(nothing)
        order.append("next step")
    other.join(10)
    assert order == ["step ended", "measured", "next step"]
    assert len(synchronized) == (device == "cuda")


def test_who_prepares_is_waited_for_while_others_train(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """First by who was there to train, then by who begins meanwhile."""
    training = start(processes, work)
    training.recv()
    preparing = start(processes, prepare)
    began = preparing.recv()
    measured = start(processes, measure, 0.3)
    ready = preparing.recv()
    begin = measured.recv()
    assert begin >= ready
    assert sum(began < step < ready for step in received(training)) > 10
    late = start(processes, prepare)
    assert late.recv() >= measured.recv() > begin


@pytest.mark.parametrize("dies", [work, measure])
def test_who_dies_is_not_waited_for(
    dies: Callable[..., None], processes: list[multiprocessing.process.BaseProcess]
) -> None:
    start(processes, dies, *([3600.0] if dies is measure else [])).recv()
    processes[0].kill()
    processes[0].join()
    started = time.monotonic()
    with AtWork("cpu") as at_work:
        with at_work.alone():
            pass
        at_work.give_way(nothing)
    assert time.monotonic() - started < 10


def test_who_hangs_is_not_waited_for_for_ever(
    processes: list[multiprocessing.process.BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "STEP_SECONDS", 0.2)
    monkeypatch.setattr(sharing, "MEASURE_SECONDS", 0.2)
    start(processes, work).recv()
    psutil.Process(processes[0].pid).suspend()
    with AtWork("cpu") as at_work, at_work.alone():
        pass
    start(processes, measure, 3600.0).recv()
    with AtWork("cpu") as at_work:
        at_work.give_way(nothing)


def test_who_waits_can_be_told_to_stop(processes: list[multiprocessing.process.BaseProcess], tmp_path: Path) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    with AtWork("cpu") as at_work:
        at_work.give_way(nothing)
        messages = start(processes, measure, 3600.0)
        (gate,) = tmp_path.glob("*/cpu.gate")
        wait_for(lambda: _is_closed(gate))
        with pytest.raises(KeyboardInterrupt):
            at_work.give_way(check)
        assert messages.poll(10)  # it is no longer waited for


def test_without_locks_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with AtWork("cpu") as one, AtWork("cpu") as other, one.alone(), other.alone():
        one.give_way(nothing)


def _is_closed(gate: Path) -> bool:
    with gate.open("rb") as file:
        return not sharing._try(file, fcntl.LOCK_SH)


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
def test_without_a_file_there_is_nothing_to_wait_for(
    device: Literal["cpu", "cuda"] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several processes with one run, a temporary folder that cannot be written, no card."""
    if device == "cpu":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with AtWork(device) as one, AtWork(device) as other, one.alone(), other.alone():
        one.give_way(nothing)
    assert not list(tmp_path.rglob("*.gate"))


def test_training_stands_still_while_a_step_is_timed(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, accelerator = tiny("linear", train__steps=100_000, train__eval_every=100_000), Accelerator(cpu=True)
    task = load_task("text", reviews, config.data.max_len)
    trainer = Trainer(config, build_model(config), task, accelerator, tmp_path / "checkpoint.pt", work=AtWork("cpu"))
    during: list[int] = []

    def stop() -> None:
        raise Diverged

    def fit() -> None:
        with suppress(Diverged), trainer.work:
            trainer.fit()

    def timed(*_: object) -> Timing:
        before = trainer.progress.step
        time.sleep(0.5)
        during.append(trainer.progress.step - before)
        return Timing(1.0, 0.0, 1)

    monkeypatch.setattr(profiler, "time_steps", timed)
    training = threading.Thread(target=fit, daemon=True)
    training.start()
    try:
        for profile in (profile_training, profile_inference):
            reached = trainer.progress.step
            wait_for(lambda at=reached: trainer.progress.step > at)
            with AtWork("cpu") as work:
                profile(config, accelerator, work=work)
        reached = trainer.progress.step
        wait_for(lambda: trainer.progress.step > reached)
    finally:
        monkeypatch.setattr(trainer.schedule, "step", stop)
        training.join(60)
    assert during == [0, 0]


def measured_alone(command: subprocess.Popen[str], gate: Path, until: Callable[[], bool]) -> int:
    """How often the command waited for this process to pause before it measured, until something happens."""
    count = 0
    with AtWork("cpu") as at_work:
        at_work.give_way(nothing)
        while command.poll() is None and not until():
            if _is_closed(gate):
                count += 1
                at_work.give_way(nothing)
            time.sleep(0.01)
    return count


def test_profiles_wait(tmp_path: Path) -> None:
    """For the rate of a matrix product, inference and training."""
    arguments = ["--models", "linear", "--lengths", "64", "--batch-size", "2", "--out", tmp_path / "out", *SMALL]
    with AtWork("cpu"):
        (gate,) = tmp_path.glob("*/cpu.gate")
    profile = start_command("profile", *arguments)
    assert measured_alone(profile, gate, until=lambda: False) == 3
    assert profile.wait() == 0, profile.communicate()


def test_runs_wait_and_give_way(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with AtWork("cpu"):
        (gate,) = tmp_path.glob("*/cpu.gate")
    arguments = ["--task", "text", "--model", "linear", "--data", reviews, "--out", out, *SETTINGS, *LONG]
    run = start_command("run", *arguments)
    try:
        assert measured_alone(run, gate, until=lambda: any(out.glob("checkpoints/*.pt"))) == 1
        with AtWork("cpu") as at_work, at_work.alone():
            saved = [path.stat() for path in out.glob("checkpoints/*")]
            time.sleep(0.5)
            assert saved == [path.stat() for path in out.glob("checkpoints/*")] != []
            assert run.poll() is None
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    finally:
        run.kill()
