"""Sweeps: several cells at a time, plans, hangs, outputs for scripts, what is already there."""

import itertools
import json
import re
import time
from pathlib import Path

import pandas as pd
import pytest

from lra_bench.cell import CellPlan
from lra_bench.config import ConfigError
from lra_bench.engines import Engine, LocalEngine, Running, run_process
from lra_bench.markup import markdown
from lra_bench.options import resolve_options
from lra_bench.outline import outline
from lra_bench.plugins import load_plugins
from lra_bench.records import write_record
from lra_bench.resolve import resolve
from lra_bench.sweep import plan_cells, resolve_cells, run_cells
from lra_bench.tables import build_tables

from .conftest import TINY
from .test_cli import SETTINGS, lra_bench


def silent(text: str) -> None:
    pass


def plans_of(
    reviews: Path, out: Path, *models: str, plugins: tuple[str, ...] = (), **changes: object
) -> list[CellPlan]:
    overrides = {**TINY, **{key.replace("__", "."): value for key, value in changes.items()}}
    configs = [
        resolve("text", model, "quick", data_source=str(reviews), plugins=plugins, overrides=overrides)
        for model in models
    ]
    return plan_cells(configs, out, threads=1, say=silent)


def test_a_grid_is_tasks_by_seeds_by_models() -> None:
    tasks, seeds, models = ["text", "listops"], [0, 1], ["linear", "sdpa"]
    options = {"device": "cpu", "data_source": "embedded", "plugins": (), "overrides": [{}]}
    configs = resolve_cells(tasks, models, "quick", seeds, **options)  # type: ignore[arg-type]
    assert [(c.task, c.seed, c.model_name) for c in configs] == [*itertools.product(tasks, seeds, models)]


def test_a_grid_of_settings_has_a_cell_for_each_that_a_model_has(reviews: Path, tmp_path: Path) -> None:
    """A model without the setting is there once, and a default keeps the model's plain name."""
    grid = {"grid": ["attention.num_features=64,8", "train.lr=1e-4,1e-3"], "settings": ["train.steps=9"]}
    options = {"protocol": "quick", "data": str(reviews), "device": "cpu", "plugins": [], "compile_": None}
    configs = resolve_options(["text"], ["softmax", "rfa"], [0], **options, **grid)  # type: ignore[arg-type]
    assert [(c.model_name, c.settings_label) for c in configs] == [
        ("softmax", "train.lr=0.0001 train.steps=9"),
        ("softmax", "train.lr=0.001 train.steps=9"),
        ("rfa", "train.lr=0.0001 train.steps=9"),
        ("rfa", "train.lr=0.001 train.steps=9"),
        ("rfa", "train.lr=0.0001 train.steps=9 num_features=8"),
        ("rfa", "train.lr=0.001 train.steps=9 num_features=8"),
    ]
    plans = plan_cells(configs, tmp_path, threads=1, say=silent)
    lines = json.loads(outline(plans, as_json=True))
    assert [line["settings"] for line in lines] == [c.settings_label for c in configs]
    assert lines[4]["step_memory_mb"] < lines[3]["step_memory_mb"]
    assert re.match(r"\| cell +\| settings +\| state ", outline(plans, as_json=False))
    plain = plan_cells([resolve("text", "linear", "quick", data_source=str(reviews))], tmp_path, say=silent)
    assert "settings" not in outline(plain, as_json=False)


@pytest.mark.parametrize(("steps", "told"), [(10, False), (9, True)])
def test_a_run_that_is_shorter_than_its_warm_up_is_told_of(
    reviews: Path, tmp_path: Path, steps: int, told: bool
) -> None:
    said: list[str] = []
    overrides = {**TINY, "train.steps": steps, "train.warmup": 10}
    configs = [
        resolve("text", model, "quick", data_source=str(reviews), overrides=overrides) for model in ("sdpa", "rfa")
    ]
    plans = plan_cells(configs, tmp_path, say=said.append)
    warning = "warning: text: 9 steps end within the 10 of warm-up; set train.warmup too"
    assert [text for text in said if "warm" in text] == [warning] * told
    note = markdown(build_tables([plan.record for plan in plans]))
    assert ("The learning rate never came to its peak: 9 steps of 10 of warm-up." in note) == told


def test_progress_names_the_settings_of_a_grid(reviews: Path, tmp_path: Path) -> None:
    """Where they differ: those of a whole command are in its tables' titles."""
    plans = plans_of(reviews, tmp_path, "linear", train__steps=3) + plans_of(reviews, tmp_path, "rfa", train__steps=4)
    said: list[str] = []
    for some in (plans, plans[:1]):
        for plan in some:
            write_record(tmp_path, plan.record.model_copy(update={"status": "ok"}))
        run_cells(some, LocalEngine(), say=said.append)
    ids = [plan.record.run_id for plan in plans]
    first, second, alone = (line.partition(": finished on")[0] for line in said)
    assert re.fullmatch(rf"\[1/2\] {ids[0]} \(.*train\.steps=3.*\)", first)
    assert re.fullmatch(rf"\[2/2\] {ids[1]} \(.*train\.steps=4.*\)", second)
    assert alone == f"[1/1] {ids[0]}"


def test_settings_go_to_the_models_that_have_them(tmp_path: Path) -> None:
    plugin = tmp_path / "two.py"
    plugin.write_text(
        "from models import MultiHeadAttention, register_attention\n"
        "@register_attention('two-settings')\nclass Two(MultiHeadAttention):\n"
        "    def __init__(self, dim, num_heads, max_len, *, rank: int, width: int, **shared):\n"
        "        super().__init__(dim, num_heads, max_len, **shared)\n"
        "    def attend(self, q, k, v, padding_mask):\n        return v\n"
    )
    load_plugins([str(plugin)])

    def resolved(overrides: dict[str, object], *models: str) -> dict[str, dict[str, object]]:
        options = {"device": "cpu", "data_source": "embedded", "plugins": ()}
        configs = resolve_cells(["text"], models, "quick", [0], overrides=[overrides], **options)  # type: ignore[arg-type]
        return {config.model_name: config.attention.settings for config in configs}

    both = {"attention.rank": 3, "attention.width": 4}
    found = resolved({**both, "attention.num_features": 8}, "softmax", "rfa", "two-settings")
    assert found["two-settings"] == {"rank": 3, "width": 4}
    assert found["rfa"]["num_features"] == 8
    assert found["softmax"] == {}
    across = {"device": "cpu", "data_source": "embedded", "plugins": (), "overrides": [{"cross.num_features": 8}]}
    sdpa, rfa = resolve_cells(["mt"], ["sdpa", "rfa"], "quick", [0], **across)  # type: ignore[arg-type]
    assert (sdpa.attention.cross, rfa.attention.cross["num_features"]) == ({}, 8)
    with pytest.raises(ConfigError, match="'width' has no default; give it a value"):
        resolved({"attention.rank": 3}, "softmax", "two-settings")
    with pytest.raises(ConfigError, match="rank = 'x'"):
        resolved({**both, "attention.rank": "x"}, "softmax", "two-settings")
    with pytest.raises(ConfigError, match="none of the models softmax, rfa has the setting"):
        resolved({"attention.rank": 3}, "softmax", "rfa")
    with pytest.raises(ConfigError, match="no setting 'rnak'; did you mean 'rank'"):
        resolved({**both, "attention.rnak": 3}, "two-settings")


def test_two_workers_share_the_threads_and_log_apart(reviews: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = lra_bench(
        "sweep", "--task", "text", "--models", "linear", "--seeds", "2", "--data", reviews, "--out", out,
        "--workers", "2", "--threads", "1", "--tensorboard", *SETTINGS, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = [json.loads(path.read_text()) for path in (out / "runs").glob("*.json")]
    assert sorted(r["config"]["seed"] for r in records) == [0, 1]
    assert {r["machine"]["threads"] for r in records} == {1}
    assert {r["status"] for r in records} == {"ok"}
    assert {path.stem for path in (out / "logs").iterdir()} == {r["run_id"] for r in records}
    assert all("validation" in path.read_text() for path in (out / "logs").iterdir())
    assert "validation" not in done.stderr
    assert re.search(r"; 1 to go, about \d+ min", done.stderr)
    assert "1 thread" in (out / "leaderboard.md").read_text()
    curves = {path.parent.name for path in (out / "tensorboard").rglob("events.out.tfevents.*")}
    assert curves >= {r["run_id"] for r in records}


def test_quiet_json_is_only_json(reviews: Path, tmp_path: Path) -> None:
    command = ("bench", "--task", "text", "--models", "linear", "--data", reviews, "--out", tmp_path, *SETTINGS)
    done = lra_bench(*command, "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = json.loads(done.stdout)
    assert [row["model"] for row in rows] == ["linear", "majority class", "byte frequencies"]
    frame = pd.read_csv(tmp_path / "leaderboard.csv")
    assert rows[0]["step_time_ms"] == frame["step_time_ms"][0]
    assert list(rows[0]) == list(frame.columns)
    again = lra_bench("leaderboard", "--out", tmp_path, "--json")
    assert json.loads(again.stdout) == rows
    assert (tmp_path / "leaderboard.tex").read_text().count("\\begin{tabular}") == 1


def test_a_plan_runs_nothing(reviews: Path, tmp_path: Path) -> None:
    plans = plans_of(reviews, tmp_path, "linear", "softmax", "sdpa")
    write_record(tmp_path, plans[0].record.model_copy(update={"status": "ok"}))
    plans[2].checkpoint.parent.mkdir()
    plans[2].checkpoint.touch()
    linear, softmax, sdpa = lines = json.loads(outline(plans, as_json=True))
    assert [line["state"] for line in lines] == ["finished", "to run", "goes on"]
    assert softmax["step_memory_mb"] > linear["step_memory_mb"] > 0
    assert softmax["train_minutes_at_least"] >= 0
    assert sdpa["steps"] == 12
    text = outline(plans, as_json=False)
    assert "2 of 3 cells to run, at least " in text
    assert text.count("\n") == 6
    forced = [plan.model_copy(update={"force": True}) for plan in plans]
    assert {line["state"] for line in json.loads(outline(forced, as_json=True))} == {"to run"}


def test_hanging_and_endless_cells_end_and_the_sweep_goes_on(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "hangs.py"
    plugin.write_text(
        "import time\nimport lra_bench.sharing\nfrom models import MultiHeadAttention, register_attention\n"
        "lra_bench.sharing.STEP_SECONDS = 1.0\n"
        "@register_attention('hangs')\nclass Hangs(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n"
        "        while v.device.type != 'meta' and not hasattr(v, 'fake_mode'):\n"
        "            try:\n                time.sleep(9)\n            except BaseException:\n                pass\n"
        "        return v\n"
    )
    monkeypatch.setattr("lra_bench.sharing.STEP_SECONDS", 1.0)  # what the plugin sets here as well ends with the test
    load_plugins([str(plugin)])
    monkeypatch.setattr("lra_bench.isolated.GRACE_SECONDS", 5.0)
    endless = {"train__steps": 1_000_000, "train__eval_every": 1_000_000, "train__compile": False}
    plans = plans_of(reviews, tmp_path, "hangs", plugins=(str(plugin),))
    plans += plans_of(reviews, tmp_path, "linear", plugins=(str(plugin),), **endless)
    plans += plans_of(reviews, tmp_path, "sdpa")
    for seconds in (10.0, 30.0, 90.0):  # a machine may be busy
        records = run_cells(plans, LocalEngine(cell_seconds=seconds, workers=2), say=silent)
        hung, stopped, fine = (
            next(r for r in records if r.config.model_name == m) for m in ("hangs", "linear", "sdpa")
        )
        if hung.status == "failed" and stopped.steps and fine.status == "ok":
            break
    assert hung.reason.startswith("hung: it did not stop within 5 s")
    # The one that trains stops as well, where it is given the time to save.
    assert (stopped.status, stopped.steps > 0, plans[1].checkpoint.exists()) == ("interrupted", True, True)
    assert fine.status == "ok"


class Recording(Engine):
    """Runs nothing; remembers what it was asked to."""

    def __init__(self) -> None:
        self.asked: list[CellPlan] = []

    def run(self, plans: object, seconds: object, started: object, ended: object) -> None:
        self.asked += plans  # type: ignore[operator]


def test_what_another_sweep_has_finished_meanwhile_is_taken(reviews: Path, tmp_path: Path) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    theirs = plan.record.model_copy(update={"status": "ok", "reason": "", "steps": 12})
    write_record(tmp_path, theirs)
    assert run_process(Running(), plan) == theirs
    ours = run_process(Running(), plan.model_copy(update={"force": True}))
    assert (ours.status, ours.created > theirs.created) == ("ok", True)


def test_what_was_run_by_other_code_is_said(reviews: Path, tmp_path: Path) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")

    def told(commit: str, dirty: bool = False) -> str:
        lines: list[str] = []
        now = plan.record.code.model_copy(update={"commit": commit, "dirty": dirty})
        asked = plan.model_copy(update={"record": plan.record.model_copy(update={"code": now})})
        run_cells([asked], Recording(), say=lines.append)
        return lines[0]

    code = plan.record.code.model_copy(update={"commit": "a" * 40, "dirty": False})
    write_record(tmp_path, plan.record.model_copy(update={"status": "ok", "reason": "", "code": code}))
    assert told("a" * 40).endswith(f"at commit {'a' * 12}; not run again (--force does)")
    for commit, dirty, now in (("b", False, "b" * 12), ("a", True, "a" * 12 + "-dirty")):
        assert f"at commit {'a' * 12}, the code is now at {now}; not run again" in told(commit * 40, dirty)


@pytest.mark.parametrize("damage", [b"{", b'{"schema_version": 99}', b"\xff"])
def test_a_record_that_cannot_be_read_is_set_aside_not_lost(
    reviews: Path, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    path = tmp_path / "runs" / f"{plan.record.run_id}.json"
    path.parent.mkdir()
    path.write_bytes(damage)
    engine = Recording()
    run_cells([plan], engine, say=silent)
    assert engine.asked == [plan]
    assert capsys.readouterr().err.count("warning: ") == 1
    assert not path.exists()
    assert path.with_name(f"{path.name}.unreadable").read_bytes() == damage


def test_a_clock_that_runs_backwards_changes_nothing(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells_here: None
) -> None:
    from lra_bench.cell import run_cell

    (plan,) = plans_of(reviews, tmp_path, "linear")
    begun = time.time()
    ticks = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: begun - 3600.0 * next(ticks))
    monkeypatch.setattr("lra_bench.cell.now", lambda: "1999-12-31T23:59:59+00:00")
    record = run_cell(plan)
    assert (record.status, record.created) == ("ok", "1999-12-31T23:59:59+00:00")
    assert 0 < record.train_time_s < 60
    assert record.profile is not None
    assert record.profile.step_time_ms > 0
    engine = Recording()
    assert run_cells([plan], engine, say=silent) == [record]
    assert engine.asked == []


def test_completion_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Typer looks for the shell that runs it; make's has no completion.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = lra_bench("--show-completion", "bash")
    assert done.returncode == 0, done.stderr
    assert "COMPREPLY" in done.stdout
