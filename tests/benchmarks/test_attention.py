"""`make bench-attention` at a tiny size: what it measures, and what it refuses."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.attention import main
from lra_bench.exits import exit_with
from models import registry

PLUGIN = """
from models import MultiHeadAttention, register_attention
@register_attention("averaging")
class Averaging(MultiHeadAttention):
    def attend(self, q, k, v, padding_mask):
        return v.mean(2, keepdim=True).expand_as(v)
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Exit code of the benchmark."""
    monkeypatch.setattr("models.registry._ATTENTIONS", dict(registry._ATTENTIONS))
    for name in ("keep_freed_memory", "release_freed_memory"):
        monkeypatch.setattr(f"benchmarks.attention.{name}", lambda: None)
    monkeypatch.setattr("sys.argv", ["attention", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        exit_with(main)
    return int(str(end.value.code))


def test_a_layer_from_a_file_is_measured_beside_softmax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "averaging.py"
    plugin.write_text(PLUGIN)
    small = ("--shapes", "compact", "--lengths", "16,24", "--rounds", 1, "--out", tmp_path)
    assert run(monkeypatch, *small, "--plugin", plugin, "--layers", "softmax,averaging") == 0
    frame = pd.read_csv(tmp_path / "attention.csv")
    assert frame[["layer", "seq_len", "status"]].values.tolist() == [
        [layer, length, "ok"] for length in (16, 24) for layer in ("softmax", "averaging")
    ]
    assert frame["peak_memory_mb"].gt(0).all()
    assert frame["speed_vs_softmax"][0] == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--layers", "rfaa", "unknown layer 'rfaa'; did you mean 'rfa'?"),
        ("--shapes", "tall", "unknown shape 'tall'; did you mean 'compact' or 'wide'?"),
        ("--lengths", "16,-1", "'-1' is not a positive whole number"),
        ("--plugin", "gone.py", "plugin 'gone.py' is not an existing .py file"),
    ],
)
def test_bad_input_is_one_line(
    option: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, option, value) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
