"""kill -9 and two commands at once over one results folder."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .test_cli import SETTINGS, lra_bench

LONG = ("--set", "train.steps=1500", "--set", "train.eval_every=500")


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
    assert (stopped["status"], 0 < stopped["steps"] < 1500) == ("interrupted", True)

    again = lra_bench(*arguments)
    assert again.returncode == 0, again.stderr
    assert "not run again" in again.stderr
    assert linear.read_bytes() == finished
    final = json.loads(rfa.read_text())
    assert (final["status"], final["steps"]) == ("ok", 1500)
    assert final["loss_curve"][: len(stopped["loss_curve"])] == stopped["loss_curve"]


def test_two_commands_at_once_share_what_each_finishes(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["run", "--task", "text", "--model", "linear", "--data", reviews, "--out", out, *SETTINGS, *LONG]
    first = start(*arguments)
    wait_for(lambda: list(out.glob("checkpoints/*.pt")))
    second = start(*arguments)
    errors = [process.communicate(timeout=180)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), errors
    assert "another process is at it" in errors[1]
    assert "validation" in errors[0]
    assert "validation" not in errors[1]  # it trained nothing
    (record,) = out.glob("runs/*.json")
    assert json.loads(record.read_text())["status"] == "ok"
