"""report.html in a real browser: it loads alone, sorts, filters, and runs nothing that a record says."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lra_bench import ROOT
from lra_bench.config import ConfigError
from lra_bench.records import ProfileRecord, Record, read_records, write_record
from lra_bench.report import write_report
from lra_bench.report_charts import bubble_chart
from lra_bench.tables import build_tables
from lra_bench.tradeoff import speed_limits, tradeoff_points

from . import conftest

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

webdriver = pytest.importorskip("selenium.webdriver")


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    driver = shutil.which("chromedriver")
    if not driver or not (shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1200"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield driver
    driver.quit()


@pytest.fixture
def report(make_record: Callable[..., Record], tmp_path: Path) -> Path:
    for model, accuracy, step_time in (("softmax", 64.0, 1400.0), ("rfa", 63.5, 90.0), ("performer", 55.0, 100.0)):
        for seed in (0, 1):
            write_record(tmp_path, make_record(model, accuracy, seed=seed, step_time=step_time))
    write_record(tmp_path, make_record("linear", None, status="oom", reason=f"MemoryError: {HOSTILE}"))
    write_record(tmp_path, make_record("rfa", 61.0, name=HOSTILE, dataset=HOSTILE))
    write_record(tmp_path, make_record("rfa", 60.0, name=HOSTILE))
    reference = ROOT / "results" / "reference" / "amd-epyc-2-cores"
    for profile in read_records(reference, ProfileRecord)[:12]:
        write_record(tmp_path, profile)
    return write_report(tmp_path)


def models(browser: object, table: int = 0) -> list[str]:
    script = """return [...document.querySelectorAll('table')[arguments[0]].tBodies[0].rows]
        .filter(row => !row.hidden).map(row => row.cells[1].textContent)"""
    return list(browser.execute_script(script, table))  # type: ignore[attr-defined]


def test_the_page_works_alone(browser: object, report: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.get(report.as_uri())  # type: ignore[attr-defined]
    find = lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)  # type: ignore[attr-defined]  # noqa: E731
    assert browser.get_log("browser") == []  # type: ignore[attr-defined]
    assert browser.title == "lra-bench report"  # type: ignore[attr-defined]
    assert len(find(".chart .main-svg")) >= 3 * 2
    assert any("training eager; commit" in note.text for note in find("#efficiency .note"))
    assert not re.findall(
        r"""(?:src|href)=["']https?:""", re.sub(r"<script>.*?</script>", "", report.read_text(), flags=re.S)
    )

    # The first table is the one of the hostile data set, the second that of imdb.
    assert set(models(browser, 1)) >= {"softmax", "rfa", "performer", "linear", HOSTILE}
    time_column = [th.text.rstrip(" ↕↑↓") for th in find("table")[1].find_elements(By.TAG_NAME, "th")].index("step ms")
    header = find("table")[1].find_elements(By.TAG_NAME, "th")[time_column]
    orders = []
    for _ in range(2):
        header.send_keys(Keys.ENTER)  # by keyboard
        time.sleep(0.3)
        orders.append([m for m in models(browser, 1) if m in ("softmax", "rfa", "performer")])
    assert sorted(orders) == [["rfa", "performer", "softmax"], ["softmax", "performer", "rfa"]]

    (search,) = find("#filter")
    search.send_keys("perform")
    assert models(browser, 1) == ["performer"]
    search.send_keys("zzz")
    assert models(browser, 1) == []
    assert find("#empty")[0].is_displayed()
    search.clear()
    search.send_keys(" ", Keys.BACKSPACE)
    assert len(models(browser, 1)) >= 5

    theme = "return getComputedStyle(document.body).backgroundColor"
    before = browser.execute_script(theme)  # type: ignore[attr-defined]
    find("#theme")[0].click()
    assert browser.execute_script(theme) != before  # type: ignore[attr-defined]
    find("details.run summary")[0].click()
    assert "fingerprint:" in find("details.run pre")[0].text
    assert browser.title == "lra-bench report"  # type: ignore[attr-defined]
    assert browser.get_log("browser") == []  # type: ignore[attr-defined]


def test_it_fits_a_phone(browser: object, report: Path) -> None:
    browser.execute_cdp_cmd(  # type: ignore[attr-defined]
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    browser.get(report.as_uri())  # type: ignore[attr-defined]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390  # type: ignore[attr-defined]
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # type: ignore[attr-defined]


def test_nothing_hostile_reaches_the_page_unescaped(report: Path) -> None:
    page = report.read_text()
    assert HOSTILE not in page
    assert "<img" not in page
    for data in re.findall(r'<script type="application/json">(.*?)</script>', page, re.S):
        assert isinstance(json.loads(data)["data"], list)


def test_no_records_no_report(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no records under"):
        write_report(tmp_path)
    assert conftest.files_below(tmp_path) == set()


def test_published_figures_stand_beside_a_table_of_the_same_data(
    make_record: Callable[..., Record], tmp_path: Path
) -> None:
    write_record(tmp_path, make_record("softmax", 64.04, step_time=1234.5, protocol="compact"))
    page = write_report(tmp_path).read_text()
    published = page.index("<h3>Published for text, family mlpen-2L")
    assert page.index('<td data-sort="1234.5">1,234.5</td>') < published  # sorted by the number, not its first digit
    assert '<td data-sort="64.04">' not in page[published:]
    assert 'data-sort="65.02">65.02</td>' in page[published:]
    write_record(tmp_path / "other", make_record("softmax", 64.0, dataset="reviews-synthetic", protocol="compact"))
    assert "<h3>Published for" not in write_report(tmp_path / "other").read_text()


def test_charts_mark_what_tables_say_more_of(make_record: Callable[..., Record], tmp_path: Path) -> None:
    write_record(tmp_path, make_record("softmax"))
    write_record(tmp_path, make_record("rfa").model_copy(update={"caveat": "mixes examples"}))
    profiles = read_records(ROOT / "results" / "reference" / "amd-epyc-2-cores", ProfileRecord)
    for profile in profiles:
        odd = profile.config.model_name == "rfa"
        write_record(tmp_path, profile.model_copy(update={"caveat": "mixes examples"}) if odd else profile)
    page = write_report(tmp_path).read_text()
    found = re.findall(r"<figcaption>(.*?)</figcaption>.*?json\">(.*?)</script>", page, re.S)
    names = {
        title: {trace.get("name", "").partition(" ∝")[0] for trace in json.loads(data)["data"]} for title, data in found
    }
    assert len(names) == 4
    for title, shown in names.items():
        assert "†: see" in title
        assert ("hollow" in title) == title.startswith("training step, ms")
        assert {"softmax", "rfa†"} <= shown


def test_speeds_are_said_in_the_units_of_their_axis(make_record: Callable[..., Record]) -> None:
    softmax, rfa = make_record("softmax"), make_record("rfa")
    for records, unit in (([softmax, rfa], "speed × %{x:.2f}"), ([rfa], "%{x:.2f} steps per second")):
        (table,) = build_tables(records)
        chart = bubble_chart(table)
        assert chart
        assert unit in chart["data"][0]["hovertemplate"]
        assert chart["layout"]["xaxis"]["range"] == speed_limits(tradeoff_points(table))


def test_columns_of_numbers_are_sorted_by_them(make_record: Callable[..., Record], tmp_path: Path) -> None:
    for model, accuracy in (("softmax", 9.0), ("rfa", 60.0), ("linear", 100.0)):
        write_record(tmp_path, make_record(model, accuracy))
    lines = re.findall(r"<tr>(<td.*?)</tr>", write_report(tmp_path).read_text())
    cells = [re.findall(r'<td data-sort="(.*?)">(.*?)</td>', line) for line in lines]
    found = {text: key for line in cells for key, text in line}
    intervals = {text: float(key) for text, key in found.items() if " to " in text}
    assert len(intervals) == 3
    assert all(text.startswith(f"{low:.1f} to") for text, low in intervals.items())
    assert (found["rfa"], found["ok"]) == ("rfa", "ok")


def test_means_over_tasks_come_first(make_record: Callable[..., Record], tmp_path: Path) -> None:
    for task, dataset in (("text", "imdb"), ("listops", "listops-generated")):
        for model in ("rfa", "softmax"):
            write_record(tmp_path, make_record(model, task=task, dataset=dataset))
    page = write_report(tmp_path).read_text()
    first, second = (page.index(f"<h2>{title}") for title in ("Mean of 2 tasks", "listops on listops-generated"))
    assert first < second
    assert '<td data-sort="1">1=</td><td data-sort="rfa">rfa</td><td data-sort="60.0">60.0</td>' in page
