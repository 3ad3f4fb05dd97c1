"""The hub path, against a hub on localhost. In processes of their own: the hub's libraries read its address once."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from tasks import load_task, task_spec
from tasks.parquet import write_parquet

from .fake_hub import fake_hub

LOAD = """
import json, sys
from tasks import DataError, load_task
try:
    task = load_task(sys.argv[2], data=sys.argv[1])
    print(json.dumps([task.data, task.source, task.fingerprint, len(task.train), len(task.test)]))
except DataError as error:
    print(json.dumps(str(error)))
"""


def load(data: str, endpoint: str, tmp_path: Path, task: str = "text") -> object:
    """What `load_task` gives in a new process that knows the hub under `endpoint`."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "LRA_BENCH_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", LOAD, data, task]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_hub_gives_what_the_same_files_give_locally(reviews: Path, tmp_path: Path) -> None:
    hub = task_spec("text").hub
    assert hub is not None
    folder = tmp_path / "repo" / "plain_text"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (reviews / "imdb" / f"{split}.parquet").rename(folder / f"{split}-00000-of-00001.parquet")
    with fake_hub(tmp_path / "repo", hub.repo, hub.revision) as (endpoint, log):
        loaded = load("hub", endpoint, tmp_path)
        local = load_task("text", data=folder)
        assert loaded == ["hub", f"hub {hub.repo} at {hub.revision[:12]}", local.fingerprint, 160, 60]
        assert any("train-00000-of-00001.parquet" in line for line in log)
        # Prepared once, it needs no hub any more, and auto prefers it to the embedded set.
        log.clear()
        assert load("auto", "http://127.0.0.1:9", tmp_path) == loaded
        assert log == []


def test_auto_takes_a_hub_that_answers(reviews: Path, tmp_path: Path) -> None:
    hub = task_spec("text").hub
    assert hub is not None
    with fake_hub(reviews / "imdb", hub.repo, hub.revision) as (endpoint, _):
        assert load("auto", endpoint, tmp_path)[:1] == ["hub"]  # type: ignore[index]


def test_no_hub_is_one_clear_line(tmp_path: Path) -> None:
    message = load("hub", "http://127.0.0.1:9", tmp_path)
    assert isinstance(message, str)
    assert message == "the hub does not answer for stanfordnlp/imdb; try again, or --data embedded or a folder"


def test_a_hub_that_hangs_is_one_clear_line_in_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections and never says a word
        started = time.perf_counter()
        message = load("hub", f"http://127.0.0.1:{server.getsockname()[1]}", tmp_path)
        assert time.perf_counter() - started < 30
    assert isinstance(message, str)
    assert message.startswith("the hub does not answer for stanfordnlp/imdb")


def test_a_hub_without_the_files_is_one_clear_line(tmp_path: Path) -> None:
    hub = task_spec("text").hub
    assert hub is not None
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "notes.md").write_text("nothing here")
    with fake_hub(tmp_path / "repo", hub.repo, hub.revision) as (endpoint, _):
        message = load("hub", endpoint, tmp_path)
    assert isinstance(message, str)
    assert message.startswith("the hub gave no stanfordnlp/imdb: ")
    assert "\n" not in message


def test_listops_and_release_files_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOps as the mirror has it (columns Source and Target), retrieval file by file."""
    listops, retrieval = task_spec("listops").hub, task_spec("retrieval").hub
    assert listops is not None
    assert retrieval is not None
    rows = "Source\tTarget\n( ( ( [MAX 4 ) 3 ) ] )\t4\n[SM 9 9 ]\t8\n"
    names = {"train": "train", "val": "validation", "test": "test"}
    for name in names:
        file = tmp_path / "listops" / f"basic_{name}.tsv"
        file.parent.mkdir(exist_ok=True)
        file.write_text(rows)
    local = load_task("listops", data=tmp_path / "listops")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for split in names.values():
        columns = {"Source": ["( ( ( [MAX 4 ) 3 ) ] )", "[SM 9 9 ]"], "Target": [4, 8]}
        pd.DataFrame(columns).to_parquet(mirror / f"{split}.parquet")
    with fake_hub(mirror, listops.repo, listops.revision) as (endpoint, _):
        loaded = load("hub", endpoint, tmp_path, task="listops")
    assert loaded[2] == local.fingerprint  # type: ignore[index]

    aan = tmp_path / "aan" / "data" / "aan"
    aan.mkdir(parents=True)
    for name in ("train", "eval", "test"):
        (aan / f"new_aan_pairs.{name}.tsv").write_text("1.0\ta\tb\tfirst\tsecond\n0.0\ta\tc\tfirst\tthird\n")
    with fake_hub(tmp_path / "aan", retrieval.repo, retrieval.revision) as (endpoint, log):
        loaded = load("hub", endpoint, tmp_path, task="retrieval")
    assert loaded[2] == load_task("retrieval", data=aan).fingerprint  # type: ignore[index]
    assert not any("archive" in line for line in log)


README = """---
configs:
- config_name: {subset}
  data_files:
  - split: train
    path: {subset}/train-*
  - split: validation
    path: {subset}/validation-*
  - split: test
    path: {subset}/test-*
---
"""


def write_subset(repo: Path, subset: str, splits: dict[str, dict[str, object]]) -> None:
    """Files of one of a repository's subsets, and the README that says which they are."""
    for split, columns in splits.items():
        write_parquet(repo / subset / f"{split}-00000-of-00001.parquet", columns)
    (repo / "README.md").write_text(README.format(subset=subset))


@pytest.mark.parametrize("task", ["lm", "wikitext103"])
def test_wikitext_comes_as_the_hub_has_it(task: str, tmp_path: Path) -> None:
    hub = task_spec(task).hub
    assert hub is not None
    assert hub.subset is not None
    # The hub's rows keep their line breaks; an empty row is an empty line.
    lines = ["", " = Title = \n", " A few words <unk> more . \n"]
    splits = {split: {"text": lines * count} for split, count in (("train", 30), ("validation", 3), ("test", 4))}
    write_subset(tmp_path / "repo", hub.subset, splits)
    with fake_hub(tmp_path / "repo", hub.repo, hub.revision) as (endpoint, _):
        loaded = load("hub", endpoint, tmp_path, task)
    release = tmp_path / "release"
    release.mkdir()
    for split, short in (("train", "train"), ("validation", "valid"), ("test", "test")):
        (release / f"wiki.{short}.tokens").write_text("".join(line or "\n" for line in splits[split]["text"]))
    local = load_task(task, release)
    assert loaded == ["hub", f"hub {hub.repo} at {hub.revision[:12]}", local.fingerprint, len(local.train), 1]


@pytest.mark.parametrize(("task", "languages"), [("wmt14-de", ("en", "de")), ("wmt14-fr", ("en", "fr"))])
def test_wmt_comes_as_the_hub_has_it(task: str, languages: tuple[str, str], tmp_path: Path) -> None:
    hub = task_spec(task).hub
    assert hub is not None
    assert hub.subset is not None
    source, target = languages
    pairs = [{target: f"{i} eins", source: f"{i} one"} for i in range(40)]
    splits = {split: {"translation": pairs[:count]} for split, count in (("train", 40), ("validation", 3), ("test", 5))}
    write_subset(tmp_path / "repo", hub.subset, splits)
    with fake_hub(tmp_path / "repo", hub.repo, hub.revision) as (endpoint, _):
        loaded = load("hub", endpoint, tmp_path, task)
    for split, columns in splits.items():
        both = {language: [pair[language] for pair in columns["translation"]] for language in languages}
        write_parquet(tmp_path / "local" / f"{split}.parquet", both)
    local = load_task(task, tmp_path / "local")
    assert loaded == ["hub", f"hub {hub.repo} at {hub.revision[:12]}", local.fingerprint, 40, 5]
