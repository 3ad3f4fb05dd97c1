"""Files of the user's own, and what a record says of the code that ran."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lra_bench.cell import run_cell
from lra_bench.config import ConfigError
from lra_bench.machine import describe_code
from lra_bench.options import resolve_options
from lra_bench.plugins import load_plugins, plugin_source
from lra_bench.resolve import resolve
from lra_bench.torch_settings import read_settings, restore_settings

from .test_sweep import plans_of

ATTENTION = """
from models import MultiHeadAttention, register_attention
@register_attention({name!r})
class Mine(MultiHeadAttention):
    def attend(self, q, k, v, padding_mask):
        {first_line}
        return v
"""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "is not an existing .py file"),
        ("not_python.txt", "x = 1", "is not an existing .py file"),
        ("broken.py", "def", "failed to load: SyntaxError"),
        ("raises.py", "raise RuntimeError('no\\nluck')", "failed to load: RuntimeError: no$"),
        ("leaves.py", "import sys; sys.exit(3)", "failed to load: SystemExit: 3"),
        (
            "alone.py",
            "import my_kernels",
            "No module named 'my_kernels'; install what it imports, or put its",
        ),
        (
            "theirs.py",
            "import models.mine",
            "No module named 'models.mine'; lra_bench, models, tasks are packages",
        ),
    ],
)
def test_bad_plugins(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_plugins([str(tmp_path / name)])


def source_of(attention: str) -> str:
    return plugin_source(resolve("text", attention, "quick"))


def test_a_plugin_is_what_it_imports_of_the_user_s_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    late = "from a_lab import late; import not_there"
    plugin = (
        "import math, torch.nn.functional as F, a_kernel, a_space.inner\n"
        "from models.attention.rfa import RandomFeatureAttention\n"
        "from a_lab.layers import scale\n" + ATTENTION.format(name="imports", first_line=late)
    )
    files = {
        "plug.py": plugin,
        "a_kernel.py": "from numpy import array\nimport a_kernel\n",
        "a_space/inner.py": "# in a folder without __init__.py\n",
        "a_lab/layers.py": "from .deeper import scale\n",
        "a_lab/deeper.py": "scale = 2\n",
        "a_lab/late.py": "from ...too_far import it\n",
        "a_lab/__init__.py": "from . import elsewhere\n",
        "a_lab/elsewhere.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    load_plugins([str(tmp_path / "plug.py")])
    before = source_of("imports")
    assert before == "".join(sorted(text for name, text in files.items() if name not in list(files)[-2:]))
    for name in files:
        (tmp_path / name).write_text(files[name] + "# edited\n")
        assert (source_of("imports") == before) == (name in list(files)[-2:])
        (tmp_path / name).write_text(files[name])
    (tmp_path / "a_lab" / "late.py").write_text("def (")  # to be mended until it is called
    assert len(source_of("imports")) == len(before) - len(files["a_lab/late.py"]) + len("def (")


def test_an_attention_may_be_defined_outside_its_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_layers.py").write_text(ATTENTION.format(name="elsewhere", first_line="pass"))
    (tmp_path / "only_imports.py").write_text("import my_layers\n")
    load_plugins([str(tmp_path / "only_imports.py")])
    assert source_of("elsewhere") == (tmp_path / "my_layers.py").read_text()
    assert source_of("rfa") == ""


def test_a_cell_runs_the_plugin_that_it_was_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reviews: Path, cells_here: None
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_scale.py").write_text("SCALE = 1\n")
    plugin = tmp_path / "edited.py"
    plugin.write_text("from a_scale import SCALE\n" + ATTENTION.format(name="edited", first_line="pass"))
    load_plugins([str(plugin)])
    plan = plans_of(reviews, tmp_path, "edited", plugins=(str(plugin),))[0]
    assert plan.record.code == describe_code(source_of("edited"))
    assert run_cell(plan).status == "ok"
    (tmp_path / "a_scale.py").write_text("SCALE = 2\n")
    record = run_cell(plan)
    assert (record.status, record.reason) == (
        "failed",
        "RuntimeError: the plugin, or what it imports, is not what the run was planned with; start it again",
    )


def test_the_record_names_the_commit_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reviews: Path, cells_here: None
) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    for found, expected in (("f" * 40, "f" * 40), ("unknown", plan.record.code.commit)):
        code = plan.record.code.model_copy(update={"commit": found})
        monkeypatch.setattr("lra_bench.plugins.describe_code", lambda _, code=code: code)
        assert run_cell(plan).code.commit == expected


def test_a_run_of_two_commits_is_of_neither(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reviews: Path,
    cells_here: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (plan,) = plans_of(reviews, tmp_path, "linear")
    clean = plan.record.code.model_copy(update={"dirty": False})

    def run_at(commit: str, status: str, short: str) -> None:
        code = clean.model_copy(update={"commit": commit})
        monkeypatch.setattr("lra_bench.plugins.describe_code", lambda _: code)
        record = run_cell(plan)
        assert (record.status, record.code.short) == (status, short)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr("lra_bench.trainer.Trainer.evaluate", stop)
        run_at("a" * 40, "interrupted", "a" * 12)
    run_at("b" * 40, "ok", "b" * 12 + "-dirty")
    assert f"warning: linear was trained at commits {'a' * 40}, {'b' * 40}" in capsys.readouterr().err


def test_packages_of_the_user_s_may_have_our_names(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("raise RuntimeError('not ours')")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    for command in (["-m", "lra_bench", "list"], ["-c", "import lra_bench, models"]):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ended = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_what_an_attention_draws_of_numpy_is_seeded(reviews: Path, tmp_path: Path, cells_here: None) -> None:
    """As BigBird its random blocks."""
    plugin = tmp_path / "sampled.py"
    plugin.write_text(
        "import numpy as np\nimport torch\nfrom models import MultiHeadAttention, register_attention\n"
        "@register_attention('sampled')\nclass Sampled(MultiHeadAttention):\n"
        "    def __init__(self, *sizes, **shared):\n        super().__init__(*sizes, **shared)\n"
        "        self.register_buffer('kept', torch.from_numpy(np.random.rand(self.head_dim) < 0.5))\n"
        "    def attend(self, q, k, v, padding_mask):\n        return v * self.kept\n"
    )
    load_plugins([str(plugin)])
    curves = []
    for number, seed in enumerate((0, 0, 1)):
        (plan,) = plans_of(reviews, tmp_path / str(number), "sampled", plugins=(str(plugin),))
        config = plan.record.config.model_copy(update={"seed": seed})
        record = run_cell(plan.model_copy(update={"record": plan.record.model_copy(update={"config": config})}))
        curves.append(record.loss_curve)
    assert curves[0] == curves[1] != curves[2]


def test_torch_is_for_all_what_it_was(
    reviews: Path, tmp_path: Path, cells_here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "changing.py"
    at_first = (
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\ntorch.backends.cuda.enable_flash_sdp(False)\n"
    )
    later = "torch.use_deterministic_algorithms(True)"
    plugin.write_text(at_first + ATTENTION.format(name="changing", first_line=later))
    before = read_settings()
    options = {"protocol": None, "data": "auto", "device": "cpu", "settings": [], "compile_": None}
    resolve_options(["text"], ["changing"], [0], plugins=[plugin], **options)
    warning = "warning: a plugin changes torch's default_dtype, float32_matmul_precision, flash_sdp; set back, as it is"
    assert capsys.readouterr().err == f"{warning} for all\n"
    assert read_settings() == before
    try:
        record = run_cell(plans_of(reviews, tmp_path, "changing", plugins=(str(plugin),))[0])
    finally:
        assert "deterministic_algorithms" in restore_settings(before)
    assert record.status == "ok"
    assert record.caveat.startswith("changes settings of torch that others run without: deterministic_algorithms; ")
