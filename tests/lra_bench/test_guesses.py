"""Guesses that need no model, in tables."""

from collections.abc import Callable

import pytest
from matplotlib.figure import Figure

from lra_bench.leaderboard import rows
from lra_bench.markup import markdown
from lra_bench.plots import _tradeoff
from lra_bench.records import Record, Score
from lra_bench.report_charts import bubble_chart
from lra_bench.tables import build_tables


@pytest.mark.parametrize(
    ("accuracy", "plateau", "said"),
    [
        (35.0, "root operator", "ok, on the plateau of root operator"),
        (36.5, "digits", "ok, on the plateau of digits"),
        (30.0, "", "ok "),
        (17.0, "majority class", "ok, on the plateau of majority class"),
        (12.0, "majority class", "ok, worse than majority class"),
    ],
)
def test_a_score_is_on_the_plateau_of_the_nearest_guess_within_its_interval(
    make_record: Callable[..., Record], accuracy: float, plateau: str, said: str
) -> None:
    record = make_record(accuracy=accuracy, test_size=2000)
    data = record.data.model_copy(update={"baselines": {"root operator": 35.2, "majority class": 16.8, "digits": 37.1}})
    tables = build_tables([record.model_copy(update={"data": data})])
    assert rows(tables)[0]["plateau"] == plateau
    assert f"| {said}" in markdown(tables)


def test_a_guess_that_only_newer_runs_know_is_the_whole_table_s(make_record: Callable[..., Record]) -> None:
    old, new = make_record("rfa", accuracy=70.0), make_record("softmax", accuracy=60.0)
    old, new = (
        r.model_copy(update={"data": r.data.model_copy(update={"baselines": known})})
        for r, known in ((old, {"majority class": 50.0}), (new, {"majority class": 50.0, "digits": 69.9}))
    )
    for records in ([old, new], [old], [new]):
        (table,) = build_tables(records)
        assert table.baselines == {**old.data.baselines, **(new.data.baselines if new in records else {})}
    assert build_tables([old, new])[0].plateau(build_tables([old])[0].entries[0]) == "digits"


def test_where_a_smaller_score_is_better_a_larger_one_is_worse_than_every_guess(
    make_record: Callable[..., Record],
) -> None:
    blank = make_record(task="lm", accuracy=None, dataset="shakespeare")
    data = blank.data.model_copy(update={"baselines": {"byte frequencies": 4.8, "the byte before": 3.6}})
    for score, plateau in ((5.2, "byte frequencies"), (4.7, "byte frequencies"), (4.2, ""), (2.5, "")):
        result = Score(metric="bits per byte", score=score, ci95=(score - 0.2, score + 0.2), last_score=score,
                       validation_score=score, best_step=1)  # fmt: skip
        (table,) = build_tables([blank.model_copy(update={"data": data, "result": result})])
        assert table.plateau(table.entries[0]) == plateau


def test_guesses_near_the_scores_are_lines_in_pictures(make_record: Callable[..., Record]) -> None:
    softmax, rfa = make_record("softmax", accuracy=60.0), make_record("rfa", accuracy=55.0)
    near = {"majority class": 50.0, "digits": 66.0}
    known = {**near, "far": 5.0}
    records = [r.model_copy(update={"data": r.data.model_copy(update={"baselines": known})}) for r in (softmax, rfa)]
    (table,) = build_tables(records)
    axes = Figure().subplots()
    assert _tradeoff(axes, table)
    drawn = {line.get_label(): line.get_ydata()[0] for line in axes.lines if line.get_label() in known}
    chart = bubble_chart(table)
    assert chart
    assert drawn == {shape["name"]: shape["y0"] for shape in chart["layout"]["shapes"]} == near
