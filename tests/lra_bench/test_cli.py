"""The command line from outside: whole runs, bad input, interruption."""

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.conduct import AHEAD, ALONE
from lra_bench.leaderboard import COLUMNS
from tasks.listops import generate_split
from tasks.listops_text import write_expressions

from .conftest import TINY, files_below

SETTINGS = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]


def lra_bench(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lra_bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_bench_then_again_then_leaderboard_alone(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["bench", "--task", "text", "--models", "softmax,rfa", "--data", reviews, "--out", out, *SETTINGS]
    command += ["--set", "attention.num_features=8"]  # which only one of them has
    done = lra_bench(*command)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(out / "leaderboard.csv").fillna({"settings": ""})
    assert list(table.columns) == COLUMNS
    assert {row.model: (row.settings, row.status) for row in table.itertuples()} == {
        "rfa": ("num_features=8", "ok"),
        "softmax": ("", "ok"),
        "majority class": ("", "baseline"),
        "byte frequencies": ("", "baseline"),
    }
    assert "rfa (num_features=8)" in done.stdout
    table = table[table["status"] == "ok"]
    assert (table["protocol"] == "quick").all()
    assert table["step_time_ms"].gt(0).all()
    assert table["peak_memory_mb"].gt(0).all()
    assert table["params_ratio"].between(1, 1.01).all()
    assert {p.suffix for p in out.iterdir() if p.is_file()} == {".csv", ".md", ".tex", ".png", ".svg"}
    assert len(list(out.glob("*.png"))) == 3
    assert (out / "leaderboard.md").read_text().strip() in done.stdout
    assert not list((out / "checkpoints").iterdir())
    for path in (out / "runs").glob("*.json"):
        record = json.loads(path.read_text())
        assert record["steps"] == 12
        assert len(record["validation_curve"]) == 3
        assert record["data"]["dataset"] == "imdb"
        assert record["machine"]["threads"] >= 1

    before = {
        p: (out / p).read_bytes()
        for p in files_below(out)
        if p.endswith((".json", ".csv", ".md", ".tex", ".png", ".svg"))
    }
    started = time.perf_counter()
    again = lra_bench(*command)
    assert again.returncode == 0
    assert again.stderr.count("not run again") == 2
    assert time.perf_counter() - started < 60
    assert {p: (out / p).read_bytes() for p in before} == before

    for name in list(before):
        if not name.startswith("runs"):
            (out / name).unlink()
    assert lra_bench("leaderboard", "--out", out).returncode == 0
    assert {p: (out / p).read_bytes() for p in before} == before


def test_pairs_and_long_lists_run_too(tmp_path: Path) -> None:
    """Retrieval's two towers and ListOps' ten classes, for a few steps."""
    for seed, (split, size) in enumerate((("train", 200), ("val", 20), ("test", 60))):
        write_expressions(tmp_path / "listops-1000" / f"basic_{split}.tsv", generate_split(seed, size, set()))
    done = lra_bench(
        "bench", "--task", "listops,retrieval", "--models", "rfa", "--out", tmp_path / "out", *SETTINGS,
        "--data", f"embedded,listops={tmp_path}", "--set", "train.steps=4", "--set", "data.validation_items=20",
        "--set", "data.test_items=40", "--set", "train.group_by_length=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "leaderboard.csv", keep_default_na=False)
    assert table[table["status"] == "ok"]["dataset"].tolist() == ["listops-release", "citations-synthetic"]
    guesses = table[(table["status"] == "baseline") & (table["task"] == "listops")]["model"]
    assert sorted(guesses) == ["majority class", "root operator", "root operator and its digits"]


def test_data_command(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    done = lra_bench("data", "describe", "text", "--data", reviews, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for expected in ("data set imdb", "train: 160 examples; classes 50.0 50.0 %", "over the 4,000 of compact: 0.0 %"):
        assert expected in done.stdout
    assert "in both train and test: " in done.stdout
    assert (tmp_path / "out" / "lengths-text-imdb.png").stat().st_size > 5_000
    assert lra_bench("data", "export", "text", "--data", reviews, "--out", tmp_path / "copy").returncode == 0
    original, copy = (pd.read_parquet(f / "imdb" / "test.parquet") for f in (reviews, tmp_path / "copy"))
    assert original.equals(copy)
    (file,) = (tmp_path / "cache").glob("*.safetensors")
    assert lra_bench("data", "verify").stdout == f"{file}: ok\n"
    file.write_bytes(file.read_bytes()[:-9])
    broken = lra_bench("data", "verify")
    assert broken.returncode == 1
    assert f"{file}: damaged" in broken.stdout
    assert "removed 1 prepared" in lra_bench("data", "clear").stdout
    assert not file.exists()


def test_crash_oom_and_divergence_each_end_one_cell(reviews: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "faulty.py"
    attend = "def attend(self, q, k, v, padding_mask):"
    plugin.write_text(
        "import os, signal, torch\nfrom models import MultiHeadAttention, register_attention\n"
        + "".join(
            f"@register_attention({name!r})\nclass {name.title()}(MultiHeadAttention):\n    {attend}\n        {body}\n"
            for name, body in {
                "raises": "raise RuntimeError('no luck\\nat all')",
                "leaves": "raise SystemExit(0)",
                "dies": "os._exit(7)",
                "killed": "os.kill(os.getpid(), signal.SIGKILL)",
                "hungry": "return v + torch.empty(2**60)",
                "astray": "return v * float('nan')",
            }.items()
        )
        + "\n"
    )
    models = "raises,leaves,dies,killed,hungry,astray,sdpa"
    done = lra_bench(
        "sweep", "--task", "text", "--models", models, "--plugin", plugin, "--data", reviews, "--out", tmp_path / "out",
        "--workers", "2", *SETTINGS, timeout=240,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    table = pd.read_csv(tmp_path / "out" / "leaderboard.csv").set_index("model")
    assert table["status"].to_dict() == {
        "sdpa": "ok",
        "raises": "failed",
        "leaves": "failed",
        "dies": "failed",
        "killed": "oom",
        "hungry": "oom",
        "astray": "diverged",
        "majority class": "baseline",
        "byte frequencies": "baseline",
    }
    assert table.loc["raises", "reason"] == "RuntimeError: no luck"
    assert "code 7" in table.loc["dies", "reason"]


def test_interrupted_leaves_a_record_and_is_resumed(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["run", "--task", "text", "--model", "rfa", "--data", reviews, "--out", out, *SETTINGS]
    # On one thread, since two wait for each other at every operation where other work is at one of the cores.
    arguments += ["--set", "train.steps=500", "--set", "train.eval_every=250", "--threads", "1"]

    def saved() -> list[int]:
        with suppress(FileNotFoundError):  # the one before is just being renamed
            return sorted(path.stat().st_mtime_ns for path in out.glob("checkpoints/*.pt"))
        return []

    steps, loss_curve = 0, []
    for signum in (signal.SIGINT, signal.SIGTERM):
        before = saved()
        process = subprocess.Popen(
            [sys.executable, "-m", "lra_bench", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & turns it off
        )
        deadline = time.monotonic() + 90
        while saved() == before:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "Traceback" not in errors
        (path,) = out.glob("runs/*.json")
        record = json.loads(path.read_text())
        assert record["status"] == "interrupted"
        assert steps < record["steps"] < 500
        # It went on from the interruption rather than from the start: the first entries are those of the first part.
        assert record["loss_curve"][: len(loss_curve)] == loss_curve
        assert pd.read_csv(out / "leaderboard.csv")["status"].tolist() == ["interrupted", "baseline", "baseline"]
        steps, loss_curve = record["steps"], record["loss_curve"]

    resumed = lra_bench(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    final = json.loads(path.read_text())
    assert (final["status"], final["steps"]) == ("ok", 500)
    assert final["loss_curve"][: len(loss_curve)] == loss_curve


def test_a_step_without_room_is_not_started(reviews: Path, tmp_path: Path) -> None:
    """Explicit softmax over 60,000 tokens: 460 GB a matrix, refused by its estimate before anything is allocated."""
    arguments = ["run", "--task", "text", "--model", "softmax", "--data", reviews, "--out", tmp_path, *SETTINGS]
    done = lra_bench(*arguments, "--set", "data.max_len=60000", "--set", "train.batch_size=32")
    assert done.returncode == 1, done.stderr
    assert "oom: MemoryError: estimated" in done.stderr
    assert "GB are free; --set train.micro_batch_size=16 computes the same step in parts" in done.stderr
    assert "Traceback" not in done.stderr


def test_dry_run_trains_nothing(tmp_path: Path) -> None:
    done = lra_bench(
        "run", "--task", "text", "--model", "rfa", "--dry-run", "--out", tmp_path / "out", "--set", "train.steps=7"
    )
    assert done.returncode == 0
    for expected in ("steps: 7", "num_features: 64", "parameters: 124,994", "estimated memory of a training step: "):
        assert expected in done.stdout
    assert "attention, one layer tried: nothing wrong found\n" in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_what_is_wrong_with_an_attention(tmp_path: Path) -> None:
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        "from models import MultiHeadAttention, register_attention\n"
        "@register_attention('wrong')\nclass Wrong(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n        return v\n"
        "    def attend_causal(self, q, k, v, x, state, keep_state):\n        return v.flip(2), None\n"
        "@register_attention('broken')\nclass Broken(Wrong):\n"
        "    def __init__(self, *sizes, **shared):\n        raise RuntimeError('no luck')\n"
    )
    tried = "attention, one layer tried"
    for task, model, expected, code in (
        ("text", "wrong", f"{tried}: {ALONE}", 0),
        ("lm", "wrong", f"{tried}: attention 'wrong' {AHEAD}", 1),
        ("text", "broken", "attention: cannot be built (RuntimeError: no luck)", 1),
    ):
        done = lra_bench("run", "--task", task, "--model", model, "--plugin", plugin, "--dry-run")
        assert done.returncode == code, done.stderr
        assert f"{expected}\n" in done.stdout


def test_list_and_help_answer_at_once() -> None:
    for arguments, expected in ((["list"], ("text", "rfa", "sdpa", "compact")), (["--help"], ("bench", "leaderboard"))):
        started = time.perf_counter()
        done = lra_bench(*arguments)
        assert done.returncode == 0
        assert all(word in done.stdout for word in expected)
        assert time.perf_counter() - started < 15  # a second on an idle machine
    code = "import sys; from lra_bench.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "list"], check=True, capture_output=True)


@pytest.mark.parametrize(
    "verb", ["bench", "run", "sweep", "profile", "leaderboard", "compare", "report", "data", "list"]
)
def test_every_verb_has_help(verb: str) -> None:
    done = lra_bench(verb, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize("group", [(), ("data",)])
def test_without_a_verb_the_help_is_printed(group: tuple[str, ...]) -> None:
    done, asked = lra_bench(*group), lra_bench(*group, "--help")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", asked.stdout)


def test_results_folder_that_cannot_be_written(reviews: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = lra_bench(
        "bench", "--task", "text", "--models", "rfa", "--data", reviews, "--out", tmp_path / "file", *SETTINGS
    )
    assert done.returncode == 2
    assert re.search(r"^error: .*file", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_minutes_end_a_bench(reviews: Path, tmp_path: Path) -> None:
    options = ("--task", "text", "--models", "linear,rfa", "--data", reviews, "--out", tmp_path, *SETTINGS)
    endless = ("--set", "train.steps=1000000", "--set", "train.eval_every=1000000")
    done = lra_bench("bench", *options, *endless, "--minutes", "0.1")
    assert done.returncode == 1
    assert "the time is up; the same command goes on from here" in done.stderr
    (path,) = (tmp_path / "runs").glob("*.json")
    record = json.loads(path.read_text())
    assert (record["config"]["model_name"], record["status"]) == ("linear", "interrupted")  # the second was not started
