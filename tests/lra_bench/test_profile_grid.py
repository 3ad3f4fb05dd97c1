"""The profile command: cells in processes of their own, every one ended with a record."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.conduct import AHEAD, ALONE
from lra_bench.efficiency import COLUMNS
from lra_bench.isolated import Ending
from lra_bench.profile_cell import ProfilePlan
from lra_bench.profile_grid import profile_lengths
from lra_bench.records import ProfileRecord, read_records, write_record
from lra_bench.resolve import resolve

from .test_cli import lra_bench

SMALL = ("--set", "model.dim=16", "--set", "model.mlp_dim=16", "--set", "model.num_layers=1", "--no-compile")


def test_profile_measures_records_and_draws(tmp_path: Path) -> None:
    done = lra_bench("profile", "--models", "softmax,rfa", "--lengths", "64,128", "--out", tmp_path, *SMALL)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "efficiency.csv")
    assert list(table.columns) == COLUMNS
    assert len(table) == 2 * 2 * 2
    assert (table["status"] == "ok").all()
    assert (table["batch_size"] == 2).all()
    assert table[["step_time_ms", "tokens_per_sec", "peak_memory_mb", "flops"]].gt(0).all(axis=None)
    assert table["matmul_share"].between(0, 1).all()  # rounded, 0 for a model as small as this on a busy machine
    assert (table[table["model"] == "softmax"]["speed_vs_softmax"] == 1).all()
    longer, shorter = (table[table["seq_len"] == n].reset_index() for n in (128, 64))
    assert (longer["peak_memory_mb"] > shorter["peak_memory_mb"]).all()
    before = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert {p.suffix for p in before} == {".csv", ".md", ".png", ".svg"}
    again = lra_bench("leaderboard", "--out", tmp_path)
    assert again.returncode == 0, again.stderr
    assert {p: p.read_bytes() for p in before} == before


def test_what_has_no_room_is_a_row_and_longer_lengths_are_not_started(tmp_path: Path) -> None:
    # 2^20 tokens of explicit softmax are terabytes; nothing of it is started.
    done = lra_bench(
        "profile", "--models", "softmax", "--lengths", "64,1048576,2097152", "--out", tmp_path, *SMALL,
        "--batch-size", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "efficiency.csv")
    status = {(r.model, r.mode, r.seq_len): (r.status, str(r.reason)) for r in table.itertuples()}
    for mode in ("train", "inference"):
        assert status["softmax", mode, 64][0] == "ok"
        assert status["softmax", mode, 2**20][0] == "oom"
        assert "estimated" in status["softmax", mode, 2**20][1]
        assert status["softmax", mode, 2**21] == ("oom", f"not started: out of memory at {2**20}")
    assert "oom" in (tmp_path / "efficiency.md").read_text()


def test_a_crashing_plugin_is_a_row(tmp_path: Path) -> None:
    plugin = tmp_path / "crash.py"
    plugin.write_text(
        "import os\nfrom models import MultiHeadAttention, register_attention\n"
        "@register_attention('crash')\nclass Crash(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n"
        "        os._exit(3) if self.training and q.device.type == 'cpu' and not hasattr(q, 'fake_mode') else None\n"
        "        return v\n"
    )
    out = tmp_path / "out"
    options = ("--plugin", plugin, "--models", "crash,linear", "--lengths", "64", "--out", out, *SMALL)
    done = lra_bench("profile", *options)
    assert done.returncode == 1, done.stderr
    table = pd.read_csv(out / "efficiency.csv").set_index(["model", "mode"])
    assert table.loc[("crash", "inference"), "status"] == "ok"
    assert table.loc[("crash", "train"), "status"] == "failed"
    assert "code 3" in table.loc[("crash", "train"), "reason"]
    assert table.loc[("crash", "inference"), "reason"] == ALONE  # its values are what comes out
    assert f" crash {ALONE}. " in (out / "efficiency.md").read_text().splitlines()[-1]
    assert table.loc[("linear", "train"), "status"] == "ok"


def test_a_causal_attention_that_looks_ahead_has_no_time(tmp_path: Path) -> None:
    plugin = tmp_path / "peek.py"
    plugin.write_text(
        "from models import register_attention\nfrom models.attention.softmax import SoftmaxAttention\n"
        "@register_attention('peek')\nclass Peek(SoftmaxAttention):\n"
        "    def attend_causal(self, q, k, v, x, state, keep_state):\n        return self.attend(q, k, v, None), None\n"
    )
    out = tmp_path / "out"
    options = ("--plugin", plugin, "--models", "peek", "--lengths", "64", "--out", out, *SMALL)
    done = lra_bench("profile", "--task", "lm", *options)
    assert done.returncode == 1, done.stderr
    table = pd.read_csv(out / "efficiency.csv")
    assert (table["status"] == "failed").all()
    assert table["step_time_ms"].isna().all()
    assert (table["reason"] == f"attention 'peek' {AHEAD}").all()
    assert "Traceback" not in done.stderr


def test_without_room_for_a_socket_a_cell_starts_from_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)  # sockets have names of 107 bytes at most
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    done = lra_bench("profile", "--models", "linear", "--lengths", "64", "--out", tmp_path / "out", *SMALL)
    assert done.returncode == 0, done.stderr
    assert (pd.read_csv(tmp_path / "out" / "efficiency.csv")["status"] == "ok").all()


def test_what_cells_are_forked_with_touches_no_card() -> None:
    code = """
import importlib, torch
from lra_bench.profile_grid import PRELOAD
def touch(*_, **__): raise AssertionError("a card is asked for at import; cells forked after it could not use one")
for name in ("is_available", "device_count", "get_device_properties", "get_device_capability", "init", "_lazy_init"):
    setattr(torch.cuda, name, touch)
for module in PRELOAD: importlib.import_module(module)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_settings_count_in_a_profile_too(tmp_path: Path) -> None:
    settings = [*SMALL[:-1], "--set", "train.compile=reduce-overhead", "--set", "train.batch_size=3"]
    done = lra_bench("profile", "--models", "linear", "--lengths", "64", "--out", tmp_path, *settings)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "efficiency.csv").set_index("mode")
    assert table["compiled"].to_dict() == {"inference": False, "train": True}
    assert (table["batch_size"] == 3).all()
    title = (tmp_path / "efficiency.md").read_text().splitlines()[2]
    assert "train.batch_size=3" in title
    assert title.endswith(", compiled")  # which is said there, not among the settings
    assert "train.compile" not in title


@pytest.mark.parametrize("lengths", ["", "12,x", "0", "-5"])
def test_bad_lengths_are_one_line(lengths: str, tmp_path: Path) -> None:
    done = lra_bench("profile", f"--lengths={lengths}", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --lengths")
    assert done.stderr.count("\n") == 1


def test_an_ending_says_what_happened() -> None:
    assert Ending(-9).reason[0] == "oom"
    assert Ending(3).reason == ("failed", "the process ended with code 3 and left no record")
    assert Ending(1, "time").reason[0] == "interrupted"
    assert Ending(1, "user").reason[0] == "interrupted"


def test_a_profile_that_is_stopped_keeps_what_was_measured_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(plan: ProfilePlan) -> Ending:
        for record in plan.records:
            write_record(plan.out, record.model_copy(update={"status": "ok", "reason": ""}))
        return Ending(0)

    def profile(run: Callable[[ProfilePlan], Ending]) -> list[ProfileRecord]:
        monkeypatch.setattr("lra_bench.profile_grid._run", run)
        return profile_lengths([resolve("text", "linear", "quick")], tmp_path)

    monkeypatch.setattr("lra_bench.profiler.matmul_rate", lambda *_: 1e9)
    with pytest.raises(KeyboardInterrupt):
        profile(lambda plan: Ending(1, "user"))
    assert [r.status for r in read_records(tmp_path, ProfileRecord)] == ["interrupted"] * 2
    ended = profile(measured)
    assert [r.status for r in ended] == ["ok"] * 2
    with pytest.raises(KeyboardInterrupt):
        profile(lambda plan: Ending(1, "user"))
    assert read_records(tmp_path, ProfileRecord) == ended
    assert [r.status for r in profile(lambda plan: Ending(1))] == ["failed"] * 2  # the attention breaks by now
