"""The hub path, against a hub on localhost. In processes of their own: the hub's libraries read its address once."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tasks import load_task, task_spec

from .fake_hub import fake_hub

LOAD = """
import json, sys
from tasks import DataError, load_task
try:
    task = load_task("text", data=sys.argv[1])
    print(json.dumps([task.data, task.source, task.fingerprint, len(task.train), len(task.test)]))
except DataError as error:
    print(json.dumps(str(error)))
"""


def load(data: str, endpoint: str, tmp_path: Path) -> object:
    """What `load_task` gives in a new process that knows the hub under `endpoint`."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "LRA_BENCH_CACHE": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", LOAD, data]
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
    assert message.startswith("the hub gave no stanfordnlp/imdb: ")
    assert "try --data embedded or a folder" in message
    assert "\n" not in message
