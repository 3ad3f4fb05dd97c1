"""An attention that looks ahead, or at padding, is found out before its scores stand in a table."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from lra_bench.cell import run_cell
from lra_bench.conduct import _FAULTS, LooksAhead, check_conduct, looks_ahead, looks_at_padded_memory, looks_at_padding
from lra_bench.resolve import resolve
from models import attention_forms, build_attention, list_attentions
from models.attention.softmax import SoftmaxAttention

from .test_cli import SETTINGS, lra_bench
from .test_sweep import plans_of

CPU = torch.device("cpu")
FORMS = [
    pytest.param(name, settings, id=f"{name} {settings}" if settings else name)
    for name in list_attentions()
    for settings in ([{}, {"gate": True}, {"kernel": "arccos"}] if name == "rfa" else [{}])
]


class Peeking(SoftmaxAttention):
    """Sees one token too many."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        seq_len = q.shape[2]
        seen = torch.ones(seq_len, seq_len, dtype=torch.bool).tril(diagonal=1)
        return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v, None


class Maskless(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, v, None)

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return super().summarize(k, v, None)


class Inverted(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, v, None if padding_mask is None else ~padding_mask)


class Cancelling(SoftmaxAttention):
    """What it must not count comes in and goes out again, but for rounding."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        everything = v.sum(dim=2, keepdim=True)
        return super().attend(q, k, v, padding_mask) + everything - everything.roll(1, dims=0)


class Refusing(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        raise TypeError("bfloat16 alone")


def layer_and_inputs(cls: type[SoftmaxAttention], seq_len: int) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return cls(16, 2, 500).eval(), torch.randn(1, seq_len, 16)


@pytest.mark.parametrize(("name", "settings"), FORMS)
@pytest.mark.parametrize("seq_len", [1, 2, 3, 50, 192])
@torch.no_grad()
def test_ours_behave(name: str, settings: dict[str, Any], seq_len: int) -> None:
    torch.manual_seed(0)
    layer, x = build_attention(name, 16, 2, 500, **settings).eval(), torch.randn(1, seq_len, 16)
    assert [form for form in attention_forms(name, settings) if _FAULTS[form](layer, x)] == []


@pytest.mark.parametrize("seq_len", [3, 50, 192])
@torch.no_grad()
def test_faults_are_found(seq_len: int) -> None:
    layer, x = layer_and_inputs(Peeking, seq_len)
    assert looks_ahead(layer, x)
    assert not looks_at_padding(layer, x)
    layer, x = layer_and_inputs(Maskless, seq_len)
    assert looks_at_padding(layer, x)
    assert looks_at_padded_memory(layer, x)
    assert not looks_ahead(layer, x)
    assert looks_at_padding(*layer_and_inputs(Inverted, seq_len))
    assert not looks_at_padding(*layer_and_inputs(Cancelling, seq_len))


def test_the_tasks_form_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"softmax": Peeking}
    monkeypatch.setattr("models.registry._ATTENTIONS", registry)
    configs = {task: resolve(task, "softmax", "quick") for task in ("text", "lm", "mt")}
    state = torch.get_rng_state()
    assert check_conduct(configs["text"], CPU) == ""
    for task in ("lm", "mt"):
        with pytest.raises(LooksAhead, match="attention 'softmax' looks ahead: "):
            check_conduct(configs[task], CPU)
    registry["softmax"] = Maskless
    assert check_conduct(configs["lm"], CPU) == ""
    for task in ("text", "mt"):
        assert check_conduct(configs[task], CPU).startswith("looks at padding: ")
    registry["softmax"] = Refusing
    assert check_conduct(configs["text"], CPU) == ""
    assert torch.equal(torch.get_rng_state(), state)


def test_a_table_tells(reviews: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "maskless.py"
    plugin.write_text(
        "from models import MultiHeadAttention, register_attention\n"
        "@register_attention('maskless')\nclass Maskless(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n        return v.cumsum(2) + v.sum(2, keepdim=True)\n"
    )
    options = ("--data", reviews, "--plugin", plugin, "--out", tmp_path / "out", *SETTINGS)
    done = lra_bench("bench", "--task", "text", "--models", "maskless", *options)
    assert done.returncode == 0, done.stderr
    fault = "looks at padding: its outputs change with what is under the mask"
    assert f"warning: maskless {fault}" in done.stderr
    assert f"| ok: {fault}" in done.stdout
    assert pd.read_csv(tmp_path / "out" / "leaderboard.csv")["reason"][0] == fault


def test_a_run_that_looks_ahead_ends_with_that_reason_alone(
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fast_profile: None,
) -> None:
    def found(*_: object) -> str:
        raise LooksAhead("attention 'mine' looks ahead")

    monkeypatch.setattr("lra_bench.conduct.check_conduct", found)
    record = run_cell(plans_of(reviews, tmp_path, "linear")[0])
    assert (record.status, record.reason, record.steps) == ("failed", "attention 'mine' looks ahead", 0)
    assert "Traceback" not in capsys.readouterr().err
