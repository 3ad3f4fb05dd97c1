"""Means over tasks: of what, by whom, and how sure."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from lra_bench import published
from lra_bench.display import display_overview, display_published_overview
from lra_bench.markup import latex, markdown
from lra_bench.overview import Overview, build_overviews
from lra_bench.records import Record
from lra_bench.tables import build_tables

from .test_compare import scored

Make = Callable[..., Record]
DATASETS = {"text": "imdb", "listops": "listops-generated", "retrieval": "aan"}


def on_all_tasks(make: Make, model: str, scores: Iterable[float | None], **rest: object) -> list[Record]:
    return [make(model, s, task=t, dataset=d, **rest) for (t, d), s in zip(DATASETS.items(), scores, strict=True)]


def only(records: list[Record]) -> Overview:
    (overview,) = build_overviews(build_tables(records))
    return overview


def body(overview: Overview) -> dict[str, list[str]]:
    """Cells by model, in the order of the table, the model's own name left out."""
    shown = display_overview(overview)
    assert shown.header[2:5] == ["listops on listops-generated", "retrieval on aan", "text on imdb"]
    return {line[1]: [line[0], *line[2:]] for line in shown.body}


def test_every_task_counts_alike_and_ratios_are_geometric_means(make_record: Make) -> None:
    softmax = on_all_tasks(make_record, "softmax", (60.0, 30.0, 72.0))
    faster = [make_record("rfa", s, task=t, dataset=DATASETS[t], step_time=ms, memory=10.0)
              for t, s, ms in (("text", 80.0, 50.0), ("listops", 33.0, 12.5), ("retrieval", 70.0, 100.0))]  # fmt: skip
    shown = body(only(softmax + faster))
    assert list(shown) == ["rfa", "softmax"]
    assert shown["rfa"][:5] == ["1", "33.0", "70.0", "80.0", "61.0"]
    assert shown["softmax"][:5] == ["2", "30.0", "72.0", "60.0", "54.0"]
    assert shown["rfa"][-2:] == ["2.52", "0.10"]  # (2 * 8 * 1) ** (1 / 3)


def test_without_a_score_on_every_task_there_is_no_mean(make_record: Make) -> None:
    records = on_all_tasks(make_record, "softmax", (60.0, 30.0, 70.0))
    records += on_all_tasks(make_record, "rfa", (99.0, None, 99.0), status="oom")
    records.append(make_record("linear", 99.0))
    shown = body(only(records))
    assert list(shown) == ["softmax", "linear", "rfa"]
    assert shown["softmax"][0] == "1"
    assert shown["linear"] == ["", "", "", "99.0", "", "", "", ""]
    assert shown["rfa"][:6] == ["", "oom", "99.0", "99.0", "", ""]


def test_ties_and_seeds(make_record: Make) -> None:
    near = on_all_tasks(make_record, "softmax", (60.0, 30.0, 70.0)) + on_all_tasks(make_record, "rfa", (60.5,) * 3)
    near += on_all_tasks(make_record, "sdpa", (60.0, 30.5, 70.3))
    shown = body(only(near))
    assert [(model, line[0]) for model, line in shown.items()] == [("rfa", "1"), ("sdpa", "2="), ("softmax", "2=")]
    assert "one seed does not tell" in display_overview(only(near)).note
    # With so many test examples that they settle it, and then with seeds that differ by more.
    many = [on_all_tasks(make_record, m, (s,) * 3, test_size=10**6) for m, s in (("rfa", 60.0), ("sdpa", 60.5))]
    assert [line[0] for line in body(only(many[0] + many[1])).values()] == ["1", "2"]
    seeds = [r for m, s in (("rfa", 60.0), ("sdpa", 60.5)) for seed in (0, 1)
             for r in on_all_tasks(make_record, m, (s + 3 * seed,) * 3, seed=seed, test_size=10**6)]  # fmt: skip
    shown = body(only(seeds))
    assert [line[0] for line in shown.values()] == ["1=", "1="]
    assert shown["sdpa"][1] == "62.0 ± 2.1"


def test_the_interval_is_that_of_test_sets_drawn_anew_for_every_task(make_record: Make) -> None:
    rng = np.random.default_rng(0)
    records = []
    for task, size in (("text", 4000), ("listops", 1000), ("retrieval", 300)):
        base = rng.random(size) < 0.6
        for model, right in (("rfa", base), ("softmax", base ^ (rng.random(size) < 0.1))):
            records.append(scored(make_record, model, right, task=task, dataset=DATASETS[task]))
    overview = only(records)
    rows = {row.label: row for row in overview.rows}
    drawn = {
        label: [e.bootstrap_scores for e in row.entries if e is not None and e.bootstrap_scores is not None]
        for label, row in rows.items()
    }
    # Test sets of different tasks have nothing to do with each other.
    orders = [rng.permutation(len(scores)) for scores in drawn["rfa"]]
    means = {label: np.mean([s[o] for s, o in zip(drawn[label], orders, strict=True)], axis=0) for label in drawn}
    assert rows["rfa"].interval == pytest.approx(np.percentile(means["rfa"], [2.5, 97.5]), abs=0.15)
    difference = overview.difference(rows["rfa"], rows["softmax"])
    expected = np.percentile(means["rfa"] - means["softmax"], [2.5, 97.5])
    assert difference.value == pytest.approx(float((means["rfa"] - means["softmax"]).mean()), abs=0.05)
    assert difference.interval == pytest.approx(expected, abs=0.1)
    assert difference.paired
    back = overview.difference(rows["softmax"], rows["rfa"])
    assert back.interval == pytest.approx([-bound for bound in reversed(difference.interval)])


def test_what_is_not_fair_or_was_disturbed_is_flagged(make_record: Make) -> None:
    softmax = on_all_tasks(make_record, "softmax", (60.0, 30.0, 70.0))
    *rest, last = on_all_tasks(make_record, "linformer", (60.0, 30.0, 70.0))
    assert list(body(only([*softmax, *rest, last]))) == ["linformer", "softmax"]
    assert last.profile is not None
    busy = last.profile.model_copy(update={"other_gpu_percent": 40.0})
    flagged = last.model_copy(update={"params_ratio": 1.2, "profile": busy})
    shown = body(only([*softmax, *rest, flagged]))
    assert shown["linformer (over 110 % of softmax)"][-2:] == ["1.00*", "1.00"]
    assert shown["softmax"][-2:] == ["1.00", "1.00"]
    assert " *: see the status in the tables below. " in display_overview(only([*softmax, *rest, flagged])).note
    # A ratio is of two step times.
    first, *others = softmax
    unsteady = first.model_copy(update={"profile": last.profile.model_copy(update={"step_time_iqr_ms": 30.0})})
    shown = body(only([unsteady, *others, *rest, last]))
    assert [line[-2] for line in shown.values()] == ["1.00*", "1.00*"]
    assert "see the status" not in display_overview(only([*softmax, *rest, last])).note


def test_guesses_without_a_model_have_means_too(make_record: Make) -> None:
    guesses = {"text": {"majority class": 50.0}, "listops": {"majority class": 17.0, "root operator": 35.0},
               "retrieval": {"majority class": 50.0, "shared runs": 74.0}}  # fmt: skip
    records = [
        r.model_copy(update={"data": r.data.model_copy(update={"baselines": guesses[r.config.task]})})
        for r in on_all_tasks(make_record, "rfa", (60.0, 30.0, 70.0))
    ]
    shown = body(only(records))
    assert shown["best guess without a model"][1:5] == ["35.0", "74.0", "50.0", "53.0"]
    assert shown["majority class"][1:5] == ["17.0", "50.0", "50.0", "39.0"]
    assert "root operator" not in shown


@pytest.mark.parametrize(
    "other",
    [
        {"task": "text", "dataset": "imdb"},  # the same task
        {"task": "text", "dataset": "mine"},  # one task on two data sets
        {"task": "listops", "dataset": "listops-generated", "protocol": "compact"},
        {"task": "retrieval", "dataset": "citations-synthetic"},
    ],
)
def test_unlike_things_have_no_mean(make_record: Make, other: dict[str, str]) -> None:
    tables = build_tables([make_record("rfa"), make_record("softmax", **other)])
    assert build_overviews(tables) == []
    assert "Mean of" not in markdown(tables)


def test_what_has_to_be_known_of_a_score_is_marked(make_record: Make) -> None:
    sound = on_all_tasks(make_record, "softmax", (60.0, 30.0, 70.0))
    assert "†" not in display_overview(only(sound)).note
    text, listops, retrieval = on_all_tasks(make_record, "rfa", (61.0, 31.0, 71.0))
    failed = make_record(
        "rfa", None, seed=1, task="listops", dataset="listops-generated", status="failed", reason="NaN"
    )
    records = [*sound, text, listops, retrieval.model_copy(update={"caveat": "mixes examples"}), failed]
    assert body(only(records))["rfa"][1:5] == ["31.0†", "71.0†", "61.0", "54.3"]
    assert body(only(records))["softmax"][1:5] == ["30.0", "70.0", "60.0", "53.3"]
    assert " †: see the status in the tables below. " in display_overview(only(records)).note
    assert r"71.0$\dagger$" in latex(build_tables(records))


def test_what_is_not_accuracy_stays_out(make_record: Make) -> None:
    records = on_all_tasks(make_record, "rfa", (60.0, 30.0, 70.0))
    failed = make_record("rfa", None, task="lm", dataset="shakespeare", status="failed")
    assert len(only([*records, failed]).tables) == 3


def test_published_means_stand_only_beside_the_same_data(make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    records = on_all_tasks(make_record, "rfa", (60.0, 30.0, 70.0), protocol="compact")
    shown = display_published_overview(only(records))
    assert shown is not None
    lines = {(line[0], line[-1].partition(" ")[0]): line[1:-1] for line in shown.body}
    assert lines["Nystromformer", "mlpen/Nystromformer"] == ["37.15", "79.56", "65.52", "60.7"]
    text = markdown(build_tables(records))
    assert text.index("## Mean of 3 tasks") < text.index("### Published for listops, retrieval, text, family mlpen-2L")
    assert text.index("Published for listops, retrieval") < text.index("## listops on listops-generated")

    on_acl = [r.model_copy(update={"data": r.data.model_copy(update={"dataset": "acl"})})
              if r.config.task == "retrieval" else r for r in records]  # fmt: skip
    (overview,) = build_overviews(build_tables(on_acl))
    assert display_published_overview(overview) is None
    assert display_published_overview(only(on_all_tasks(make_record, "rfa", (60.0, 30.0, 70.0)))) is None  # quick

    # Who failed on one task has no mean.
    rows = [{**row, "value": "FAIL"} if row["task"] == "ListOps" and row["model"] == "Nystromformer" else row
            for row in published.read_published()]  # fmt: skip
    monkeypatch.setattr(published, "read_published", lambda: rows)
    shown = display_published_overview(only(records))
    assert shown is not None
    assert not any(line[0] == "Nystromformer" for line in shown.body)


def test_the_mean_is_in_the_paper_s_table_too(make_record: Make) -> None:
    text = latex(build_tables(on_all_tasks(make_record, "rfa", (60.0, 30.0, 70.0))))
    assert text.count(r"\begin{table}") == 4
    assert r"\label{tab:mean-quick-cpu-" in text
