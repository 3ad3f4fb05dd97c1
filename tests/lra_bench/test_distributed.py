"""Several processes on one cell, and cells on Ray."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from lra_bench.machine import cuda_devices
from lra_bench.packing import unpack_numbers

from .test_cli import SETTINGS, lra_bench
from .test_survival import wait_for


def record_in(out: Path, model: str) -> dict[str, Any]:
    (path,) = out.glob(f"runs/*-{model}-*.json")
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def in_two_processes(*arguments: object) -> subprocess.CompletedProcess[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*torchrun, "-m", "lra_bench", *map(str, arguments)],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_two_processes_learn_as_one_with_the_whole_batch(reviews: Path, tmp_path: Path) -> None:
    options = ["run", "--task", "text", "--model", "sdpa", "--data", reviews, *SETTINGS]
    options += ["--set", "train.steps=40", "--set", "model.dropout=0"]
    alone = lra_bench(*options, "--out", tmp_path / "one", "--threads", "1")
    assert alone.returncode == 0, alone.stderr
    options += ["--set", "train.micro_batch_size=3"]  # of their eight; gradients are shared after the last ones
    together = in_two_processes(*options, "--out", tmp_path / "two")
    assert together.returncode == 0, together.stderr
    one, two = record_in(tmp_path / "one", "sdpa"), record_in(tmp_path / "two", "sdpa")
    assert two["machine"]["device"] == f"2 x {one['machine']['device']}"
    steps, losses = zip(*one["loss_curve"], strict=True)
    shared_steps, shared_losses = zip(*two["loss_curve"], strict=True)
    assert shared_steps == steps
    assert shared_losses == pytest.approx(losses, rel=1e-3)
    assert losses[-1] < losses[0]
    assert two["result"]["accuracy"] == pytest.approx(one["result"]["accuracy"], abs=2.0)
    assert together.stdout.count("# Leaderboard") == 1
    # The same command in one process finds it finished.
    assert "not run again" in lra_bench(*options, "--out", tmp_path / "two").stderr


@pytest.mark.slow
def test_two_processes_share_what_is_to_be_translated(tmp_path: Path) -> None:
    options = ["run", "--task", "mt", "--model", "sdpa", "--data", "embedded", *SETTINGS]
    options += ["--set", "model.dropout=0", "--set", "train.steps=10", "--set", "train.eval_every=10"]
    options += ["--set", "data.test_items=200", "--set", "data.validation_items=50"]
    alone = lra_bench(*options, "--out", tmp_path / "one", "--threads", "1")
    assert alone.returncode == 0, alone.stderr
    together = in_two_processes(*options, "--out", tmp_path / "two")
    assert together.returncode == 0, together.stderr
    one, two = (record_in(tmp_path / name, "sdpa") for name in ("one", "two"))
    items, shared = (unpack_numbers(r["result"]["summands"], r["data"]["test_size"]) for r in (one, two))
    # Row by row: lengths and matches of every translation in its place.
    assert (items == shared).all(axis=1).mean() > 0.9
    assert len(np.unique(items, axis=0)) > 20


def test_the_process_that_fails_tells_why(reviews: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "faulty.py"
    plugin.write_text(
        "import os, torch\nfrom models import MultiHeadAttention, register_attention\n"
        "@register_attention('faulty')\nclass Faulty(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n"
        "        if os.environ['RANK'] == '1' and torch.is_grad_enabled() and not q.is_meta:\n"
        "            raise RuntimeError('the second card is on fire')\n"
        "        return v\n"
    )
    out = tmp_path / "out"
    options = ["run", "--task", "text", "--model", "faulty", "--plugin", plugin, "--data", reviews, *SETTINGS]
    assert in_two_processes(*options, "--out", out).returncode == 1
    record = record_in(out, "faulty")
    assert (record["status"], record["reason"]) == ("failed", "RuntimeError: the second card is on fire")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--task", "text"], "several processes work on one cell at a time: under torchrun use lra-bench run"),
        (["run", "--task", "text", "--model", "rfa"], "train.batch_size = 16 cannot be shared equally by 3 processes"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lra_bench", *arguments],
        capture_output=True, text=True, env={**os.environ, "WORLD_SIZE": "3", "RANK": "0"}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


def test_cards_are_those_that_the_user_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert cuda_devices() == ("3", "GPU-5")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert cuda_devices() == ("0", "1")


def ray_environment(tmp_path: Path) -> dict[str, str]:
    # Ray's sockets need a short path; the cells' folders are the test's own.
    return {**os.environ, "TMPDIR": str(tmp_path), "RAY_TMPDIR": "/tmp"}


def test_a_killed_ray_worker_has_its_cell_retried(reviews: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    out, cells = tmp_path / "out", tmp_path / "lra-bench-ray"
    options = ["--task", "text", "--data", reviews, "--threads", "1", *SETTINGS]
    options += ["--set", "train.steps=600", "--set", "train.eval_every=200", "--set", "train.checkpoint_every=20"]
    ray = ["--engine", "ray", "--models", "linear,rfa", "--out", out]
    command = [sys.executable, "-m", "lra_bench", "sweep", *ray, *options]
    sweep = subprocess.Popen(
        [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ray_environment(tmp_path)
    )
    try:
        wait_for(lambda: list(cells.glob("*-rfa-*/checkpoints/*.pt")) or sweep.poll() is not None, 120)
        victims = [
            cell.parent()
            for cell in psutil.Process(sweep.pid).children(recursive=True)
            if cell.cmdline()[1:] == ["-m", "lra_bench.cell"]
            and any("-rfa-" in file.path for file in cell.open_files())  # its lock
        ]
        victim = victims[0] if victims else None
        assert victim is not None, sweep.communicate()
        victim.send_signal(signal.SIGKILL)
        started = time.monotonic()
        output, errors = sweep.communicate(timeout=240)
    finally:
        sweep.kill()
    assert sweep.returncode == 0, (output, errors, time.monotonic() - started)
    assert not list(cells.glob("*/checkpoints/*"))  # what is finished leaves its record on the workers, and no more
    # The one that was killed learned what it learns undisturbed.
    alone = lra_bench("run", "--model", "rfa", "--out", tmp_path / "alone", *options, timeout=240)
    assert alone.returncode == 0, alone.stderr
    ours, theirs = record_in(out, "rfa"), record_in(tmp_path / "alone", "rfa")
    assert ours["loss_curve"] == theirs["loss_curve"]
    assert ours["result"] == theirs["result"]
    assert record_in(out, "linear")["status"] == "ok"
    assert {record_in(out, name)["machine"]["threads"] for name in ("linear", "rfa")} == {1}


def test_ray_says_at_once_what_no_node_can_run(reviews: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    command = ("sweep", "--task", "text", "--models", "rfa", "--data", reviews, "--out", tmp_path / "out", *SETTINGS)
    done = lra_bench(*command, "--engine", "ray", "--threads", "4096")
    assert done.returncode == 2
    assert "error: no node of the Ray cluster has 4096 CPUs and 0 GPUs" in done.stderr
