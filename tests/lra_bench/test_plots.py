"""Pictures from records."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from lra_bench.plots import BUBBLE, COLOURS, KNOWN, _pareto, _step_time, _tradeoff, colour_of, dashed, write_plots
from lra_bench.protocols import names
from lra_bench.published import published_points
from lra_bench.records import Record
from lra_bench.tables import build_tables


def test_three_pictures_a_table(make_record: Callable[..., Record], tmp_path: Path) -> None:
    records = [make_record(m, seed=s) for m in ("softmax", "sdpa", "rfa") for s in (0, 1)]
    records.append(make_record("softmax", None, status="oom", dataset="other"))
    paths = write_plots(tmp_path, build_tables(records))
    pictures = [p for p in paths if p.suffix == ".png"]
    assert {p.with_suffix(".png") for p in paths if p.suffix == ".svg"} == set(pictures)
    names = sorted(p.name.partition("-")[0] for p in pictures if "imdb" in p.name)
    assert names == ["learning", "step_time", "tradeoff"]
    for path in pictures:
        with Image.open(path) as picture:
            assert picture.width >= 1000
            assert len(picture.convert("RGB").getcolors(10**6) or []) > 10


def test_unknown_memory_and_no_measurement_draw_too(make_record: Callable[..., Record], tmp_path: Path) -> None:
    assert len(write_plots(tmp_path, build_tables([make_record(memory=None)]))) == 6


def test_the_pareto_front_has_what_nothing_beats() -> None:
    assert _pareto([(1, 60), (2, 58), (3, 59), (4, 50), (4, 51)]) == [(1, 60), (3, 59), (4, 51)]


def test_a_curve_that_would_hide_another_is_dashed() -> None:
    sdpa = [(100, 17.0), (200, 34.3), (300, 35.0)]
    softmax = [(100, 17.0), (200, 34.4), (300, 35.0)]
    crossing = [(100, 17.0), (200, 30.0), (300, 35.0)]
    shorter = sdpa[:2]
    assert dashed({"sdpa": sdpa, "softmax": softmax, "rfa": crossing, "linear": shorter}) == {"softmax", "linear"}
    assert dashed({"linear": shorter, "sdpa": sdpa}) == {"sdpa"}
    assert dashed({"linear": shorter[1:], "sdpa": sdpa}) == set()


def test_published_points_are_relative_to_their_own_transformer() -> None:
    points = {(p.model, p.source): p for p in published_points("text", "mlpen-2L")}
    base = points["Transformer", "skyformer"]
    assert (base.speed, base.memory) == (1, 1)
    linformer = points["Linformer", "skyformer"]
    assert linformer.speed == pytest.approx(4.3 / 0.65)
    assert linformer.memory == pytest.approx(0.99 / 10.37)
    assert published_points("text", "quick") == []


def test_published_figures_are_drawn_hollow_beside_a_family_s_own(
    make_record: Callable[..., Record], tmp_path: Path
) -> None:
    records = [make_record(m, protocol="compact") for m in ("softmax", "rfa")]
    write_plots(tmp_path, build_tables(records))
    (picture,) = tmp_path.glob("tradeoff-*.svg")
    assert "Skyformer (skyformer)" in picture.read_text()
    for dataset in ("reviews-synthetic", "mine-own-split"):
        other = [make_record(m, protocol="compact", dataset=dataset) for m in ("softmax", "rfa")]
        (tmp_path / dataset).mkdir()
        write_plots(tmp_path / dataset, build_tables(other))
        (picture,) = (tmp_path / dataset).glob("tradeoff-*.svg")
        assert "skyformer" not in picture.read_text()


def test_points_lie_where_the_figures_are(make_record: Callable[..., Record]) -> None:
    softmax = make_record("softmax", 60.0, protocol="compact", step_time=100.0, memory=200.0)
    rfa = make_record("rfa", 62.0, protocol="compact", step_time=50.0, memory=50.0)
    (table,) = build_tables([softmax, rfa])
    axes = Figure().subplots()
    assert _tradeoff(axes, table)
    drawn = [c for c in axes.collections if isinstance(c, PathCollection) and len(c.get_offsets())]
    areas = {tuple(c.get_offsets()[0]): float(c.get_sizes()[0]) for c in drawn}
    published = {(p.speed, p.accuracy): BUBBLE * p.memory for p in published_points("text", "mlpen-2L")}
    assert areas == pytest.approx({(1.0, 60.0): BUBBLE, (2.0, 62.0): BUBBLE / 4, **published})
    (alone,) = build_tables([rfa])  # steps a second, and nothing published to relate to
    axes = Figure().subplots()
    assert _tradeoff(axes, alone)
    drawn = [c for c in axes.collections if isinstance(c, PathCollection) and len(c.get_offsets())]
    assert [tuple(c.get_offsets()[0]) for c in drawn] == [(20.0, 62.0)]


def test_speeds_that_are_nearly_the_same_lie_close_together(make_record: Callable[..., Record]) -> None:
    def width(fastest: float) -> float:
        (table,) = build_tables([make_record("softmax", step_time=fastest), make_record("rfa", step_time=100.0)])
        axes = Figure().subplots()
        assert _tradeoff(axes, table)
        low, high = axes.get_xlim()
        return (1 - fastest / 100) / (high - low)  # of the picture, between the two

    assert 0.04 < width(98.0) < 0.06
    assert width(50.0) > 0.7


def test_step_times_are_bars_the_shortest_on_top(make_record: Callable[..., Record]) -> None:
    records = [make_record("softmax", step_time=50.0), make_record("rfa", step_time=100.0)]
    untimed = make_record("linear", None, status="oom").model_copy(update={"profile": None})
    (table,) = build_tables([*records, untimed])
    axes = Figure().subplots()
    assert _step_time(axes, table)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    bars = {label: bar.get_width() for label, bar in zip(labels, axes.patches, strict=True)}
    assert list(bars.items()) == [("softmax", 50.0), ("rfa", 100.0)]
    assert axes.yaxis_inverted()


def test_colours_tell_models_apart() -> None:
    assert sorted(KNOWN) == names("models")
    labels = ["rfa", "linear", "rfa-gate", "mine", "rfa (redraw=False)", "rfa (temperature=0.5)"]
    assert len({colour_of(label, labels) for label in labels}) == len(labels)
    assert colour_of("rfa", labels) == colour_of("rfa", ["rfa"])
    many = [*KNOWN, "mine"]
    assert {colour_of(label, many) for label in many} == set(COLOURS)


def test_what_has_to_be_known_of_a_score_is_marked(make_record: Callable[..., Record], tmp_path: Path) -> None:
    marked = make_record("rfa").model_copy(update={"caveat": "mixes examples"})
    lost = make_record("linear", None, status="failed", reason="it broke")  # has nothing to be marked
    write_plots(tmp_path, build_tables([make_record("softmax"), marked, lost]))
    pictures = [path.read_text() for path in tmp_path.glob("*.svg")]
    assert len(pictures) == 3
    for picture in pictures:
        texts = re.findall(r">([^<>]+)</text>", picture)
        assert [text[:4] for text in texts if "†" in text and "see" not in text] == ["rfa†"]
        assert any("(†: see the status in the table)" in text for text in texts)
    write_plots(tmp_path, build_tables([make_record("softmax"), make_record("rfa"), lost]))
    assert not any("†" in path.read_text() for path in tmp_path.glob("*.svg"))


def test_times_that_may_mislead_are_marked(make_record: Callable[..., Record], tmp_path: Path) -> None:
    record = make_record("rfa", step_time=50.0)
    assert record.profile is not None
    busy = record.model_copy(update={"profile": record.profile.model_copy(update={"other_cpu_percent": 49.0})})
    write_plots(tmp_path, build_tables([make_record("softmax"), busy]))
    shown = {path.name.partition("-")[0]: re.findall(r">([^<>]+)</text>", path.read_text())
             for path in tmp_path.glob("*.svg")}  # fmt: skip
    assert {"50.0 ms*", "100.0 ms"} <= set(shown["step_time"])
    assert {"rfa*, 100 MB", "softmax, 100 MB"} <= set(shown["tradeoff"])
    for name, texts in shown.items():  # accuracies are not in doubt
        assert any("(*: see the status in the table)" in text for text in texts) == (name != "learning")


def test_fractions_of_a_step_are_not_rounded(make_record: Callable[..., Record], tmp_path: Path) -> None:
    curve = [(10, 50.0), (20, 51.0)]
    write_plots(tmp_path, build_tables([make_record("rfa").model_copy(update={"validation_curve": curve})]))
    (picture,) = tmp_path.glob("learning-*.svg")
    shown = {float(text) for text in re.findall(r">([0-9.]+)</text>", picture.read_text())}
    assert {0.0, 2.5, 5.0, 7.5, 10.0} <= shown
