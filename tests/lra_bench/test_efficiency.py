"""Profile records over lengths: tables and pictures."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from lra_bench import ROOT
from lra_bench.efficiency import build_groups, efficiency_rows, write_efficiency
from lra_bench.efficiency_plots import write_efficiency_plots
from lra_bench.machine import describe_code, describe_machine
from lra_bench.records import Mode, ProfileRecord, StepProfile
from lra_bench.report_charts import length_chart
from lra_bench.resolve import resolve

from .test_cli import lra_bench


@pytest.fixture(scope="module")
def make_profile() -> Callable[..., ProfileRecord]:
    machine, code = describe_machine("cpu", "fp32"), describe_code()

    def make(
        model: str, seq_len: int, milliseconds: float | None, memory: float = 10.0, mode: Mode = "train"
    ) -> ProfileRecord:
        config = resolve("text", model, "compact")
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_len": seq_len})})
        profile = None
        if milliseconds is not None:
            profile = StepProfile(
                mode=mode,
                batch_size=32,
                seq_len=seq_len,
                step_time_ms=milliseconds,
                step_time_iqr_ms=0.1,
                tokens_per_sec=1.0,
                peak_memory_mb=memory,
                peak_reserved_mb=None,
            )
        return ProfileRecord(
            run_id=f"{model}-{mode}-{seq_len}",
            created="2026-01-01T00:00:00+00:00",
            status="ok" if profile else "oom",
            reason="" if profile else "estimated",
            config=config,
            mode=mode,
            flops=10**9,
            matmul_flops_per_sec=1e11,
            profile=profile,
            machine=machine,
            code=code,
        )

    return make


def test_lengths_of_a_plugin_before_and_after_an_edit_are_not_mixed(
    make_profile: Callable[..., ProfileRecord],
) -> None:
    def at(seq_len: int, text: str, day: int) -> ProfileRecord:
        record = make_profile("rfa", seq_len, 10.0)
        code = record.code.model_copy(update={"plugin": text})
        return record.model_copy(update={"code": code, "created": f"2026-01-0{day}T00:00:00+00:00"})

    records = [at(2048, "old", 1), at(4096, "old", 1), at(4096, "new", 2), at(8192, "new", 3)]
    (group,) = build_groups([*records, make_profile("softmax", 2048, 10.0)])
    assert [n for n, _ in group.curve("rfa", "step_time_ms")] == [4096, 8192]
    assert [n for n, _ in group.curve("softmax", "step_time_ms")] == [2048]


def test_exponents_and_ratios(make_profile: Callable[..., ProfileRecord]) -> None:
    records = []
    for n in (1024, 2048, 4096, 8192):
        records.append(make_profile("softmax", n, n**2 / 1e4, n**2 / 1e5))
        records.append(make_profile("rfa", n, n / 1e2, n / 1e2))
    (group,) = build_groups(records)
    assert group.exponent("softmax", "step_time_ms") == pytest.approx(2)
    assert group.exponent("rfa", "peak_memory_mb") == pytest.approx(1)
    record = group.find("rfa", "train", 4096)
    assert record is not None
    assert group.ratio(record, "softmax", "step_time_ms") == pytest.approx(100 / 4096)
    assert group.ratio(record, "sdpa", "step_time_ms") is None


def test_tables_and_pictures_with_holes(make_profile: Callable[..., ProfileRecord], tmp_path: Path) -> None:
    records = [make_profile("softmax", 1024, 50.0), make_profile("softmax", 4096, None)]
    records += [make_profile("rfa", n, n / 50, n / 30) for n in (1024, 4096)]
    groups = build_groups(records)
    text = write_efficiency(tmp_path, groups)
    assert "oom" in text
    assert "Tay et al. 2021, Table 2" in text
    assert "Linformer" in text
    table = pd.read_csv(tmp_path / "efficiency.csv")
    rows = table.set_index(["model", "seq_len"])
    assert rows["matmul_share"]["softmax", 1024] == pytest.approx(1e9 / 50e-3 / 1e11)
    assert rows["speed_vs_softmax"]["rfa", 1024] == pytest.approx(50 / 20.48, rel=1e-3)
    assert "2.4 / 3.41" in text
    lost = table[(table["model"] == "softmax") & (table["seq_len"] == 4096)].iloc[0]
    assert lost["status"] == "oom"
    assert math.isnan(lost["step_time_ms"])
    paths = write_efficiency_plots(tmp_path, groups)
    assert [p.suffix for p in paths] == [".png", ".svg"]
    with Image.open(paths[0]) as picture:
        assert picture.width > 1500
    assert write_efficiency_plots(tmp_path, build_groups([make_profile("rfa", 64, None)])) == []


def test_only_beside_softmax_at_their_lengths_are_published_ratios(
    make_profile: Callable[..., ProfileRecord], tmp_path: Path
) -> None:
    def heading(*records: ProfileRecord) -> bool:
        return "### Relative to softmax" in write_efficiency(tmp_path, build_groups(records))

    assert heading(make_profile("softmax", 1024, 50.0), make_profile("rfa", 1024, 10.0))
    assert not heading(make_profile("rfa", 1024, 10.0))
    assert not heading(make_profile("softmax", 512, 50.0), make_profile("rfa", 512, 10.0))


def test_few_lengths_have_numbers_beside_them_too(make_profile: Callable[..., ProfileRecord], tmp_path: Path) -> None:
    """Between 31 and 35 there is no power of ten, nor between 310 and 480."""
    records = [make_profile("rfa", 64, 31.0, 310.0), make_profile("softmax", 64, 35.0, 480.0)]
    _, svg = write_efficiency_plots(tmp_path, build_groups(records))
    shown = [float(text) for text in re.findall(r">([0-9.]+)</text>", svg.read_text())]
    assert len([n for n in shown if 30 < n < 36]) >= 2
    assert len([n for n in shown if 300 < n < 500]) >= 2


def test_what_has_to_be_known_of_a_model_is_said(make_profile: Callable[..., ProfileRecord], tmp_path: Path) -> None:
    marked = make_profile("rfa", 64, 31.0).model_copy(update={"caveat": "mixes examples"})
    (group,) = groups = build_groups([marked, make_profile("softmax", 64, 35.0)])
    assert " rfa mixes examples." in group.note
    assert {row["model"]: row["reason"] for row in efficiency_rows(groups)} == {"rfa": "mixes examples", "softmax": ""}
    _, svg = write_efficiency_plots(tmp_path, groups)
    assert ">rfa†</text>" in svg.read_text()
    assert "(†: see below the table)" in svg.read_text()


def test_exponents_are_of_times_taken_alone(make_profile: Callable[..., ProfileRecord]) -> None:
    def busy(n: int, time: float) -> ProfileRecord:
        record = make_profile("rfa", n, time)
        assert record.profile is not None
        return record.model_copy(update={"profile": record.profile.model_copy(update={"other_cpu_percent": 50.0})})

    alone = [make_profile("rfa", n, n / 100) for n in (2048, 4096)]
    (group,) = build_groups([*alone, busy(3072, 900.0)])
    assert group.exponent("rfa", "step_time_ms") == pytest.approx(1.0)
    (group,) = build_groups([alone[0], busy(4096, 20.48 * 4)])  # there is nothing else to go by
    assert group.exponent("rfa", "step_time_ms") == pytest.approx(2.0)


@pytest.mark.parametrize("column", ["other_cpu_percent", "other_gpu_percent"])
def test_times_taken_beside_other_work_are_marked(
    make_profile: Callable[..., ProfileRecord], tmp_path: Path, column: str
) -> None:
    alone = make_profile("softmax", 1024, 50.0)
    assert "*" not in write_efficiency(tmp_path, build_groups([alone])).replace("**", "")
    assert alone.profile is not None
    profile = alone.profile.model_copy(update={column: 48.26})
    text = write_efficiency(tmp_path, build_groups([alone.model_copy(update={"profile": profile})]))
    assert "| 50.0*" in text
    assert "*: timed while other processes took more than 10 %" in text
    assert pd.read_csv(tmp_path / "efficiency.csv")[column].tolist() == [48.26]


@pytest.mark.parametrize(("spread", "mark"), [(12.4, ""), (12.6, "*")])
def test_times_of_unsteady_steps_are_marked(
    make_profile: Callable[..., ProfileRecord], tmp_path: Path, spread: float, mark: str
) -> None:
    record = make_profile("softmax", 1024, 50.0)
    assert record.profile is not None
    profile = record.profile.model_copy(update={"step_time_iqr_ms": spread})
    text = write_efficiency(tmp_path, build_groups([record.model_copy(update={"profile": profile})]))
    assert f"| 50.0{mark} " in text
    assert ("quartiles are more than 25 %" in text) == bool(mark)


def test_times_that_may_mislead_are_hollow_in_pictures(
    make_profile: Callable[..., ProfileRecord], tmp_path: Path
) -> None:
    steady = [make_profile("rfa", n, n / 50) for n in (1024, 2048)]
    assert steady[0].profile is not None
    profile = steady[0].profile.model_copy(update={"step_time_iqr_ms": steady[0].profile.step_time_ms})
    unsteady = [steady[0].model_copy(update={"profile": profile}), steady[1]]
    for records, hollow in ((steady, 0), (unsteady, 1)):
        (group,) = build_groups(records)
        _, svg = write_efficiency_plots(tmp_path, [group])
        text = svg.read_text()
        # Their edge has the model's colour, which other hollow things have not.
        assert len(re.findall(r'style="fill: #ffffff; stroke: #009e73', text)) == hollow
        assert ("(hollow: * in the table)" in text) == bool(hollow)
        for field, count in (("step_time_ms", hollow), ("peak_memory_mb", 0)):
            chart = length_chart(group, field, "")
            assert chart is not None
            symbols = chart["data"][0]["marker"]["symbol"]
            assert [symbol.endswith("-open") for symbol in symbols] == [count > 0, False]


def test_models_that_did_not_compile_are_named(make_profile: Callable[..., ProfileRecord]) -> None:
    def ran(record: ProfileRecord, compiled: bool, compile_: bool | str, device: str = "cpu") -> ProfileRecord:
        """compiled: whether it was; compile_: whether that was asked for."""
        train = record.config.train.model_copy(update={"compile": compile_})
        config = record.config.model_copy(update={"train": train, "device": device})
        machine = record.machine.model_copy(update={"compiled": compiled})
        return record.model_copy(update={"config": config, "machine": machine})

    fast, slow, lost = (
        make_profile("rfa", 1024, 5.0),
        make_profile("sdpa", 1024, 5.0),
        make_profile("linear", 1024, None),
    )
    for asked, device, title in (
        (True, "cpu", "compiled"), ("reduce-overhead", "cpu", "compiled"), ("reduce-overhead", "cuda", "as CUDA graphs")
    ):  # fmt: skip
        for compiled, words in ((True, title), (False, f"{title} but for sdpa")):
            (group,) = build_groups(
                [ran(fast, True, asked, device), ran(slow, compiled, asked, device), ran(lost, False, asked, device)]
            )
            assert f"; training {words}; commit" in group.note
            assert group.title.endswith(f", {title}")
    (group,) = build_groups([ran(fast, False, False), ran(lost, False, False)])
    assert "; training eager; commit" in group.note
    assert group.title.endswith(", eager")


def test_other_batch_sizes_are_other_tables(make_profile: Callable[..., ProfileRecord]) -> None:
    first = make_profile("rfa", 1024, 5.0)
    train = first.config.train.model_copy(update={"batch_size": 2})
    second = first.model_copy(update={"config": first.config.model_copy(update={"train": train})})
    assert len(build_groups([first, second])) == 2
    assert json.loads(first.model_dump_json())["mode"] == "train"


def test_cells_before_an_edit_of_their_protocol_are_another_table(make_profile: Callable[..., ProfileRecord]) -> None:
    def profiled(model: str, seq_len: int, day: int, dim: int) -> ProfileRecord:
        record = make_profile(model, seq_len, 5.0).model_copy(update={"created": f"2026-01-0{day}T00:00:00+00:00"})
        changed = record.config.model.model_copy(update={"dim": dim})
        return record.model_copy(update={"config": record.config.model_copy(update={"model": changed})})

    now = [profiled("rfa", seq_len, 2, 128) for seq_len in (1024, 2048)]
    one, other = build_groups([*now, profiled("softmax", 1024, 1, 64), profiled("softmax", 2048, 1, 64)])
    assert (one.labels, one.lengths) == (["rfa"], [1024, 2048])
    assert (other.labels, other.lengths) == (["softmax"], [1024, 2048])
    assert "with model.dim=64" in other.title
    assert "model.dim" not in one.title


def test_other_threads_are_other_tables(make_profile: Callable[..., ProfileRecord]) -> None:
    one = make_profile("rfa", 1024, 10.0)
    other = one.model_copy(update={"machine": one.machine.model_copy(update={"threads": one.machine.threads + 1})})
    assert len({group.title for group in build_groups([one, other])}) == 2


@pytest.mark.parametrize("folder", sorted((ROOT / "results" / "reference").iterdir()), ids=lambda p: p.name)
def test_reference_results_are_what_their_records_give(folder: Path, tmp_path: Path) -> None:
    for kind in {"runs", "profiles"} & {p.name for p in folder.iterdir()}:
        shutil.copytree(folder / kind, tmp_path / kind)
    done = lra_bench("leaderboard", "--out", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    made = {p.name for p in tmp_path.iterdir() if p.is_file()}
    # The layer and decoding benchmarks write attention.* and decode.*; the rest is the leaderboard's.
    assert made == {p.name for p in folder.iterdir() if p.is_file() and p.stem not in ("attention", "decode")}
    # One document: of the runs where there are any, though there are profiles as well.
    rows = json.loads(done.stdout)
    kind = "runs" if (tmp_path / "runs").is_dir() else "profiles"
    records = [json.loads(path.read_bytes()) for path in (tmp_path / kind).glob("*.json")]
    assert {row["task"] for row in rows} == {record["config"]["task"] for record in records}
    for name in made:
        if name.endswith((".csv", ".md", ".tex")):  # the bytes of pictures depend on the version of matplotlib
            assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
