"""Tables from records."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lra_bench.display import display
from lra_bench.leaderboard import COLUMNS, rows, safe_cell, write_csv
from lra_bench.markup import latex, markdown
from lra_bench.records import Record
from lra_bench.tables import build_tables


def ranks(records: list[Record]) -> dict[str, str]:
    (table,) = build_tables(records)
    return {entry.label: table.rank(entry) for entry in table.entries}


def test_columns_and_values(make_record: Callable[..., Record], tmp_path: Path) -> None:
    records = [make_record("softmax", 60.0, step_time=200.0, memory=400.0), make_record("rfa", 70.0, memory=100.0)]
    write_csv(tmp_path / "leaderboard.csv", build_tables(records))
    with (tmp_path / "leaderboard.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert list(first) == COLUMNS
    assert (first["model"], first["rank"], second["model"], second["rank"]) == ("rfa", "1", "softmax", "2")
    assert (first["accuracy"], first["accuracy_std"], first["status"]) == ("70.0", "", "ok")
    assert json.loads(first["accuracy_ci95"]) == pytest.approx([68.56, 71.4], abs=0.01)
    assert (first["step_time_ms"], first["steps_per_sec"], first["speed_vs_softmax"]) == ("100.0", "10.0", "2.0")
    assert (first["memory_vs_softmax"], second["memory_vs_softmax"]) == ("0.25", "1.0")
    assert (first["device"], first["torch"], first["commit"]) == ("Test CPU", "2.13.0", "0123456789ab")
    issue = "task dataset protocol model seeds accuracy accuracy_std accuracy_ci95 step_time_ms steps_per_sec"
    issue += " tokens_per_sec peak_memory_mb params params_ratio train_time_s status device torch commit"
    assert set(issue.split()) <= set(COLUMNS)


def test_seeds_are_aggregated_and_items_not_counted_twice(make_record: Callable[..., Record]) -> None:
    (row,) = rows(build_tables([make_record(accuracy=a, seed=i) for i, a in enumerate((60.0, 62.0, 64.0))]))
    assert (row["seeds"], row["accuracy"], row["accuracy_std"]) == (3, 62.0, 2.0)
    (single,) = rows(build_tables([make_record(accuracy=62.0)]))
    assert row["accuracy_ci95"] == single["accuracy_ci95"]


def test_equal_scores_stand_in_the_order_of_their_settings(make_record: Callable[..., Record]) -> None:
    records = []
    for features in (128, 16, 2, 64):
        record = make_record()
        attention = record.config.attention.model_copy(update={"changed": f"num_features={features}"})
        config = record.config.model_copy(update={"attention": attention})
        records.append(record.model_copy(update={"config": config}))
    (table,) = build_tables([*records, make_record(), make_record("linear"), make_record("softmax", 61.0)])
    in_order = ["linear", "rfa", *(f"rfa (num_features={n})" for n in (2, 16, 64, 128))]
    assert [entry.label for entry in table.entries] == ["softmax", *in_order]
    assert [entry.label for entry in table.validated] == [*in_order, "softmax"]


def test_what_a_bare_name_stands_for_is_told_where_others_name_it(make_record: Callable[..., Record]) -> None:
    def row(changed: str, num_features: int, across: int) -> Record:
        settings = {"settings": {"num_features": num_features, "gate": False}, "cross": {"num_features": across}}
        record = make_record()
        attention = record.config.attention.model_copy(update={**settings, "changed": changed})
        return record.model_copy(update={"config": record.config.model_copy(update={"attention": attention})})

    plain, fewer = row("", 64, 128), row("num_features=16", 16, 16)
    notes = [display(*build_tables(records)).note for records in ([plain], [fewer], [plain, fewer])]
    told = " rfa without brackets: num_features=64 cross.num_features=128."
    assert [told in note for note in notes] == ["without brackets" in note for note in notes] == [False, False, True]


def test_a_mean_of_fewer_seeds_than_were_run_says_so(make_record: Callable[..., Record]) -> None:
    diverged = make_record(accuracy=None, seed=2, status="diverged", reason="the loss is nan at step 7")
    (table,) = build_tables([make_record(seed=0), make_record(seed=1), diverged, make_record("softmax")])
    lines = {line[1]: dict(zip(display(table).header, line, strict=True)) for line in display(table).body}
    assert (lines["rfa"]["seeds"], lines["rfa"]["status"]) == ("2 of 3", "diverged: the loss is nan at step 7")
    assert lines["softmax"]["seeds"] == "1"
    (table,) = build_tables([diverged])
    assert display(table).body[0][-2:] == ["1", "diverged: the loss is nan at step 7"]


def test_curves_are_of_the_seeds_that_were_validated(make_record: Callable[..., Record]) -> None:
    stopped = make_record(accuracy=None, seed=2, status="interrupted").model_copy(update={"validation_curve": []})
    ((entry,),) = (table.entries for table in build_tables([make_record(seed=0), make_record(seed=1), stopped]))
    assert entry.learning_curve == [(100, 55.5, 55.0, 56.0), (200, 60.5, 60.0, 61.0)]


def test_ties_are_printed_as_ties(make_record: Callable[..., Record]) -> None:
    near = [make_record("softmax", 60.0), make_record("sdpa", 60.5), make_record("rfa", 55.0)]
    assert ranks(near) == {"softmax": "1=", "sdpa": "1=", "rfa": "3"}
    # The same difference counts once there are enough examples.
    many = [make_record("softmax", 60.0, test_size=100_000), make_record("sdpa", 60.5, test_size=100_000)]
    assert ranks(many) == {"sdpa": "1", "softmax": "2"}
    # Unless seeds differ by as much.
    seeds = [make_record(m, s + d, seed=n, test_size=100_000) for m, s in (("softmax", 60.0), ("sdpa", 60.5))
             for n, d in enumerate((-0.5, 0.5))]  # fmt: skip
    assert ranks(seeds) == {"sdpa": "1=", "softmax": "1="}


@pytest.mark.parametrize(
    "other", [{"dataset": "reviews-synthetic"}, {"fingerprint": "e" * 64}, {"protocol": "compact"}]
)
def test_unlike_things_never_share_a_table(make_record: Callable[..., Record], other: dict[str, str]) -> None:
    tables = build_tables([make_record(), make_record(**other)])
    assert [len(t.entries) for t in tables] == [1, 1]
    assert len({t.slug for t in tables}) == 2


def test_versions_of_a_task_stand_apart(make_record: Callable[..., Record]) -> None:
    old, new = make_record("softmax"), make_record("rfa")
    new = new.model_copy(update={"data": new.data.model_copy(update={"task_version": 2})})
    first, second = build_tables([new, old])
    assert first.title.startswith("text on ")
    assert second.title.startswith("text version 2 on ")
    assert first.slug != second.slug
    digests = {old.config.digest("f", "", version) for version in (1, 2, 3)}
    assert len(digests) == 3
    assert old.config.digest("f") in digests


def test_runs_without_a_result_stay_visible(make_record: Callable[..., Record]) -> None:
    records = [make_record("softmax", None, status="oom", reason="no memory"), make_record("rfa")]
    tables = build_tables(records)
    assert [(r["model"], r["status"], r["accuracy"], r["rank"]) for r in rows(tables)] == [
        ("rfa", "ok", 60.0, "1"),
        ("softmax", "oom", None, ""),
    ]
    assert "oom: no memory" in markdown(tables)


def test_markdown_shows_published_figures_apart_and_only_beside_the_same_data(
    make_record: Callable[..., Record],
) -> None:
    text = markdown(build_tables([make_record(protocol="compact")]))
    assert "### Published for text, family mlpen-2L" in text
    assert "Nystromformer" in text
    assert "Longformer" not in text  # of another family
    synthetic = markdown(build_tables([make_record(protocol="compact", dataset="reviews-synthetic")]))
    assert "Published" not in synthetic
    assert "Synthetic data: not comparable" in synthetic
    other = markdown(build_tables([make_record(protocol="compact", dataset="mine-own-split")]))
    assert "Published for" not in other
    assert "Published figures are of other data (imdb) and not comparable." in other
    assert "ublished" not in markdown(build_tables([make_record(dataset="mine-own-split")]))  # quick has no family


def test_published_figures_beside_changed_settings_say_so(make_record: Callable[..., Record]) -> None:
    record = make_record(protocol="compact")
    changed = record.config.model_copy(update={"overrides": "data.max_len=1024"})
    note = "never ranked with the rows above, which are of protocol compact{}."
    assert note.format("") in markdown(build_tables([record]))
    text = markdown(build_tables([record.model_copy(update={"config": changed})]))
    assert note.format(" with data.max_len=1024") in text


def test_a_seed_that_died_early_hides_nothing_of_the_others(make_record: Callable[..., Record]) -> None:
    dead = make_record(accuracy=None, status="oom", reason="killed").model_copy(
        update={"params": None, "params_ratio": None, "profile": None, "train_time_s": 0.0, "steps": 0}
    )
    well = make_record(seed=1, params_ratio=1.3).model_copy(
        update={"machine": dead.machine.model_copy(update={"compiled": True})}
    )
    odd = make_record(seed=2, params_ratio=1.3).model_copy(update={"caveat": "mixes examples"})
    tables = build_tables([dead, well])
    (row,) = rows(tables)
    known = (row["params"], row["params_ratio"], row["compiled"], row["train_time_s"], row["steps"], row["reason"])
    assert known == (1000, 1.3, True, 20.0, 200, "killed")
    assert "over 110 % of softmax" in markdown(tables)
    assert rows(build_tables([well, odd]))[0]["reason"] == "mixes examples"
    cut = dead.model_copy(update={"validation_curve": dead.validation_curve[:1]})
    for records, steps in (([cut, well], [100, 200]), ([cut, cut.model_copy(update={"config": odd.config})], [100])):
        (table,) = build_tables(records)
        assert [point.step for point in table.entries[0].learning_curve] == steps


def test_a_plugin_s_task_without_a_result_has_a_table_too(make_record: Callable[..., Record]) -> None:
    record = make_record(accuracy=None, status="failed", reason="it broke")
    unknown = record.model_copy(update={"config": record.config.model_copy(update={"task": "mine"})})
    assert "| accuracy % |" in markdown(build_tables([unknown]))


def test_a_long_reason_of_a_failure_is_whole_in_the_csv_alone(make_record: Callable[..., Record]) -> None:
    reason = "RuntimeError: " + "sizes do not match, " * 20 + "at last"
    failed = build_tables([make_record(accuracy=None, status="failed", reason=reason)])
    assert rows(failed)[0]["reason"] == reason
    (line,) = (line for line in markdown(failed).splitlines() if "RuntimeError" in line)
    assert "failed: RuntimeError: sizes do not match, " in line
    assert "match, … |" in line
    assert "at last" not in line
    known = build_tables([make_record().model_copy(update={"caveat": reason})])
    assert reason in markdown(known)


def test_runs_without_a_result_are_headed_by_their_tasks_metric(make_record: Callable[..., Record]) -> None:
    record = make_record(task="mt", accuracy=None, status="interrupted", dataset="multi30k")
    text = markdown(build_tables([record]))
    assert "BLEU" in text
    assert "accuracy" not in text


def test_an_entry_with_too_many_parameters_is_flagged(make_record: Callable[..., Record]) -> None:
    assert "over 110 % of softmax" in markdown(build_tables([make_record(params_ratio=1.11)]))
    assert "over 110 % of softmax" not in markdown(build_tables([make_record(params_ratio=1.09)]))


@pytest.mark.parametrize("where", ["CPU", "GPU"])
def test_steps_timed_beside_other_work_are_flagged(make_record: Callable[..., Record], where: str) -> None:
    record = make_record()
    assert record.profile is not None
    column = f"other_{where.lower()}_percent"
    for percent, flagged in ((48.26, True), (9.0, False), (None, False)):
        profile = record.profile.model_copy(update={column: percent})
        tables = build_tables([record.model_copy(update={"profile": profile})])
        assert (f"ok, timed while others took 48 % of the {where}" in markdown(tables)) == flagged
        assert rows(tables)[0][column] == (None if percent is None else round(percent, 1))


def test_steps_that_differ_much_are_flagged(make_record: Callable[..., Record]) -> None:
    record = make_record(step_time=100.0)
    assert record.profile is not None
    for apart, said in ((37.4, "ok, timed in steps whose quartiles are 37 % apart "), (24.0, "ok ")):
        profile = record.profile.model_copy(update={"step_time_iqr_ms": apart})
        tables = build_tables([record.model_copy(update={"profile": profile})])
        assert f"| {said}" in markdown(tables)
        assert rows(tables)[0]["step_time_iqr_ms"] == apart


@pytest.mark.parametrize("hostile", ["=1+1", "+x", "-x", "@x", "\tx"])
def test_cells_that_look_like_formulas_are_neutralised(
    make_record: Callable[..., Record], tmp_path: Path, hostile: str
) -> None:
    write_csv(tmp_path / "l.csv", build_tables([make_record(name=hostile)]))
    with (tmp_path / "l.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["model"] == f"'{hostile}"
    assert safe_cell(-1.5) == -1.5


def test_latex_escapes_what_latex_would_run(make_record: Callable[..., Record]) -> None:
    text = latex(build_tables([make_record(name=r"\input{x} 5% a_b & $x^2$ #~")]))
    assert r"\textbackslash{}input\{x\} 5\% a\_b \& \$x\textasciicircum{}2\$ \#\textasciitilde{}" in text
    body = text.split("\\midrule")[1].split("\\bottomrule")[0]
    assert body.count("\\\\") == 1
    assert r"\toprule" in text


def test_pipes_cannot_break_a_markdown_table(make_record: Callable[..., Record]) -> None:
    text = markdown(build_tables([make_record(name="a|b\nc")]))
    assert "a\\|b c" in text


def test_the_note_names_what_records_of_a_table_differ_in(make_record: Callable[..., Record]) -> None:
    def ran(model: str, **machine: object) -> Record:
        record = make_record(model)
        train = record.config.train.model_copy(update={"compile": True})
        config = record.config.model_copy(update={"train": train})
        return record.model_copy(update={"config": config, "machine": record.machine.model_copy(update=machine)})

    fast, slow = ran("softmax", compiled=True), ran("rfa")
    lost = make_record("linear", None, status="oom").model_copy(update={"profile": None})
    assert "in fp32, compiled, on" in markdown(build_tables([fast, lost]))
    assert "in fp32, compiled but for rfa, on" in markdown(build_tables([fast, slow, lost]))
    assert "in fp32 on 2 threads of torch 2.13.0;" in markdown(build_tables([slow, lost]))
    both = markdown(build_tables([slow, ran("sdpa", torch="2.11.0")]))
    assert "on 2 threads of torch 2.11.0, 2 threads of torch 2.13.0;" in both
