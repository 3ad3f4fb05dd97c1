"""README, docs and Makefile: what they show runs, and what they name exists."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd

from lra_bench import ROOT

from .test_cli import SETTINGS, lra_bench


def code_block(document: str, first_line: str) -> str:
    """The code block of the document that begins with `first_line`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    (block,) = re.findall(rf"```\w+\n({re.escape(first_line)}\n.*?)```", text, re.DOTALL)
    return str(block)


def test_the_readmes_attention_is_one_file(reviews: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "my_attention.py"
    plugin.write_text(code_block("README.md", "# my_attention.py"))
    command = ["bench", "--task", "text", "--models", "mine", "--plugin", plugin, "--data", reviews]
    command += ["--set", "attention.temperature=2"]
    done = lra_bench(*command, "--out", tmp_path / "out", *SETTINGS)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "leaderboard.csv")
    assert table["model"][0] == "mine"
    assert set(table["status"][1:]) == {"baseline"}
    assert table["settings"][0] == "temperature=2"
    # An edited plugin is another attention: its old run is not taken for finished.
    plugin.write_text(plugin.read_text() + "\n# changed\n")
    again = lra_bench(*command, "--out", tmp_path / "out", *SETTINGS)
    assert "not run again" not in again.stderr
    texts = [json.loads(path.read_text())["code"]["plugin"] for path in (tmp_path / "out" / "runs").glob("*.json")]
    assert len(set(texts)) == 2


def test_the_documented_attention_has_all_forms(tmp_path: Path) -> None:
    plugin = tmp_path / "average.py"
    plugin.write_text(code_block("docs/attention.md", "# average.py"))
    for task in ("text", "lm", "mt"):
        done = lra_bench("run", "--task", task, "--model", "average", "--plugin", plugin, "--dry-run")
        assert done.returncode == 0, done.stderr
        assert "attention, one layer tried: nothing wrong found" in done.stdout


def test_the_documented_task_is_one_file_and_one_yaml(tmp_path: Path) -> None:
    plugin, yaml = tmp_path / "my_task.py", tmp_path / "mine.yaml"
    plugin.write_text(code_block("docs/tasks.md", "# my_task.py"))
    yaml.write_text(code_block("docs/tasks.md", "# mine.yaml"))
    command = ("bench", "--task", "mine", "--models", "rfa", "--plugin", plugin, "--out", tmp_path / "out", *SETTINGS)
    done = lra_bench(*command)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "out" / "leaderboard.csv")
    assert table[["task", "dataset", "status"]].iloc[0].tolist() == ["mine", "mine-synthetic", "ok"]
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_bytes(b"1 good\n0 bad\n" * 20)
    describe = ("data", "describe", "mine", "--plugin", plugin, "--out", tmp_path / "out")
    assert "test: 40 examples" in lra_bench(*describe, "--data", tmp_path).stdout
    assert "test: 100 examples" in lra_bench(*describe).stdout
    plugin.write_text(plugin.read_text().replace("* 50", "* 60"))  # what is cached is not what it makes now
    assert "test: 120 examples" in lra_bench(*describe).stdout
    yaml.write_text(yaml.read_text().replace("classes", "clases"))
    done = lra_bench(*command)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .*mine\.yaml: num_classes: field required\n", done.stderr)


def test_documents_name_what_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"make ([a-z-]+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (document.parent / link).exists(), link
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_make_passes_its_variables_on_as_they_are() -> None:
    variables = ["TASK=text,lm", "MODELS=softmax, rfa", "DATA=~/my data", "OUT=my results", "ARGS=--set train.steps=3"]
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # not within `make test`
    command = ["make", "-n", "bench", *variables]
    done = subprocess.run(command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    options = shlex.split(done.stdout.splitlines()[-1])[1:]
    folders = ["--data", f"{Path.home()}/my data", "--out", "my results"]
    assert options == ["bench", "--task", "text,lm", "--models", "softmax, rfa", *folders, "--set", "train.steps=3"]
