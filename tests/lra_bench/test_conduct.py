"""An attention that sees what it must not, or nothing, is found out before its scores stand in a table."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from lra_bench.cell import run_cell
from lra_bench.conduct import (
    AHEAD,
    ALONE,
    EXAMPLES,
    LENGTH,
    LENGTHS,
    NUMBERS,
    PADDING,
    RANDOM,
    SEEDS,
    STATE,
    UNKNOWN,
    WEIGHTS,
    LooksAhead,
    check_conduct,
    find_faults,
)
from lra_bench.plugins import load_plugins
from lra_bench.resolve import resolve
from models import attention_forms, build_attention, list_attentions, registry

from .misbehaving import (
    AtOnce,
    Averaging,
    BlockLocal,
    Cancelling,
    Dividing,
    Drawing,
    Dropping,
    Forgetful,
    FromNothing,
    FullLength,
    HalfPrecision,
    Hoarding,
    InBlocks,
    InChunks,
    Inverted,
    Masking,
    Maskless,
    OfAnotherLayout,
    OfTorch,
    Peeking,
    Refusing,
    SeedingAtEveryPass,
    SeedingAtFirst,
    SequenceFirst,
    Silent,
)
from .test_cli import SETTINGS, lra_bench
from .test_sweep import plans_of

CPU = torch.device("cpu")
FORMS = [
    pytest.param(name, settings, id=f"{name} {settings}" if settings else name)
    for name in list_attentions()
    for settings in ([{}, {"gate": True}, {"kernel": "arccos"}] if name == "rfa" else [{}])
]


def faults_of(cls: type[nn.Module], seq_len: int, form: str = "encoder", **settings: Any) -> list[str]:
    torch.manual_seed(0)
    return find_faults(form, cls(16, 2, 500, **settings).eval(), torch.randn(2, seq_len, 16))


@pytest.mark.parametrize(("name", "settings"), FORMS)
@pytest.mark.parametrize("seq_len", [1, 2, 3, 50, *LENGTHS])
@torch.no_grad()
def test_ours_behave(name: str, settings: dict[str, Any], seq_len: int) -> None:
    torch.manual_seed(0)
    layer, x = build_attention(name, 16, 2, 1024, **settings).eval(), torch.randn(2, seq_len, 16)
    forms = attention_forms(name, settings)
    assert {form: find_faults(form, layer, x) for form in forms} == {form: [] for form in forms}


@pytest.mark.parametrize("seq_len", [3, 50, 192])
@torch.no_grad()
def test_faults_are_found(seq_len: int) -> None:
    assert faults_of(Peeking, seq_len, "causal") == [AHEAD, STATE]
    assert faults_of(Forgetful, seq_len, "causal") == [STATE]
    assert faults_of(Peeking, seq_len) == []
    assert faults_of(Maskless, seq_len) == faults_of(Maskless, seq_len, "cross") == [PADDING]
    assert faults_of(Maskless, seq_len, "causal") == []
    assert faults_of(Inverted, seq_len) == [PADDING]
    assert faults_of(Cancelling, seq_len) == []
    assert faults_of(Drawing, seq_len) == faults_of(Dropping, seq_len, dropout=0.1) == [RANDOM]
    assert faults_of(Dropping, seq_len) == []
    assert faults_of(SeedingAtEveryPass, seq_len) == [SEEDS]
    for form in ("encoder", "causal", "cross"):
        unmasked = [PADDING] if form == "cross" else []  # where a query sees what has its own number
        for cls in (OfAnotherLayout, HalfPrecision):
            assert faults_of(cls, seq_len, form) == [*unmasked, ALONE]
        assert faults_of(SequenceFirst, seq_len, form) == [*unmasked, EXAMPLES, ALONE]
    assert faults_of(OfTorch, seq_len) == [EXAMPLES, ALONE]
    assert faults_of(OfTorch, seq_len, batch_first=True) == [PADDING]
    assert faults_of(Averaging, seq_len) == faults_of(Averaging, seq_len, "cross") == [LENGTH]
    if seq_len == 192:
        assert faults_of(InBlocks, seq_len) == [LENGTH]
    assert faults_of(Hoarding, seq_len) == [WEIGHTS]
    assert faults_of(Hoarding, seq_len, "causal") == []
    assert faults_of(Silent, seq_len) == []
    assert faults_of(Masking, seq_len) == [NUMBERS]
    assert faults_of(Dividing, seq_len, "causal") == [STATE]


@torch.no_grad()
def test_what_cannot_be_tried_is_told() -> None:
    asked = (
        "looks at padding or depends on how much is padded or mixes examples or mixes no tokens or draws at random in"
        " evaluation or has weights that are no parameters or seeds torch's generator itself or gives what is no number"
    )
    assert faults_of(Refusing, 50) == [f"{UNKNOWN}{asked} (TypeError: 64 heads alone)"]
    assert faults_of(AtOnce, 50, "causal") == [AHEAD, f"{UNKNOWN}loses its state (TypeError: no state)"]


def test_an_attention_of_one_length_is_tried_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": FullLength})
    for max_len in (max(LENGTHS) - 1, max(LENGTHS) + 1):
        config = resolve("text", "softmax", "quick", overrides={"data.max_len": max_len})
        assert check_conduct(config, CPU) == [PADDING]


def test_a_fault_at_the_edge_of_a_long_chunk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": InChunks})
    for max_len in (256, 400, 2000):
        config = resolve("lm", "softmax", "quick", overrides={"data.max_len": max_len})
        with nullcontext() if max_len == 256 else pytest.raises(LooksAhead):
            assert check_conduct(config, CPU) == []


@torch.no_grad()
def test_a_token_without_a_neighbour_is_not_taken_for_all() -> None:
    assert ALONE not in faults_of(BlockLocal, 50)
    assert ALONE not in faults_of(BlockLocal, 192)


def test_seeding_when_it_is_built_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": SeedingAtFirst})
    assert check_conduct(resolve("text", "softmax", "quick"), CPU) == [SEEDS]


@torch.no_grad()
def test_an_output_that_is_learned_from_zero_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": FromNothing})
    assert faults_of(FromNothing, 50, "causal") == []
    with pytest.raises(LooksAhead):
        check_conduct(resolve("lm", "softmax", "quick"), CPU)


def test_the_tasks_form_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {"softmax": Peeking}
    monkeypatch.setattr("models.registry._ATTENTIONS", registry)
    configs = {task: resolve(task, "softmax", "quick") for task in ("text", "lm", "mt")}
    state = torch.get_rng_state()
    assert check_conduct(configs["text"], CPU) == []
    for task in ("lm", "mt"):
        with pytest.raises(LooksAhead, match="attention 'softmax' looks ahead: "):
            check_conduct(configs[task], CPU)
    registry["softmax"] = Maskless
    assert check_conduct(configs["lm"], CPU) == []
    for task in ("text", "mt"):
        assert check_conduct(configs[task], CPU) == [PADDING]
    registry["softmax"] = SequenceFirst
    assert check_conduct(configs["text"], CPU) == [EXAMPLES, ALONE]
    assert check_conduct(configs["mt"], CPU) == [EXAMPLES, ALONE, PADDING]  # causal first, then across
    registry["softmax"] = Forgetful
    assert check_conduct(configs["mt"], CPU) == [STATE]
    carrying = configs["lm"].evaluation.model_copy(update={"carry_state": True})
    assert check_conduct(configs["lm"], CPU) == []
    assert check_conduct(configs["lm"].model_copy(update={"evaluation": carrying}), CPU) == [STATE]
    registry["softmax"] = Cancelling
    assert check_conduct(configs["text"], CPU) == []
    registry["softmax"] = Refusing
    assert check_conduct(configs["text"], CPU)[0].startswith(UNKNOWN)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_leaves_the_runs_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def faults(*_: object) -> list[str]:
        seen.append(torch.get_float32_matmul_precision())
        return []

    monkeypatch.setattr("lra_bench.conduct.find_faults", faults)
    torch.set_float32_matmul_precision("high")
    try:
        check_conduct(resolve("text", "softmax", "quick"), CPU)
        seen.append(torch.get_float32_matmul_precision())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest"] * len(LENGTHS) + ["high"]


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
    fault = "looks at padding: its outputs change with what is under the mask; all its batches have the full length"
    assert f"warning: maskless {fault}" in done.stderr
    assert f"| ok: {fault}" in done.stdout
    assert pd.read_csv(tmp_path / "out" / "leaderboard.csv")["reason"][0] == fault


def test_what_depends_on_padding_gets_batches_of_one_length(
    reviews: Path, tmp_path: Path, cells_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one that runs at no other: neither a short review nor the last batch of a split is an exception."""
    plugin = tmp_path / "whole.py"
    plugin.write_text(
        "from models import MultiHeadAttention, register_attention\n"
        "@register_attention('whole')\nclass Whole(MultiHeadAttention):\n"
        "    def attend(self, q, k, v, padding_mask):\n"
        "        keys = k if padding_mask is None else k.masked_fill(padding_mask[:, None, :, None], 0)\n"
        "        return v + keys.view(len(k), self.num_heads, self.max_len, -1).mean(2, keepdim=True)\n"
    )
    monkeypatch.setattr("models.registry._ATTENTIONS", dict(registry._ATTENTIONS))
    load_plugins([str(plugin)])
    (plan,) = plans_of(reviews, tmp_path, "whole", plugins=(str(plugin),), data__max_len=300)
    record = run_cell(plan)
    assert (record.status, record.caveat) == ("ok", f"{LENGTH}; all its batches have the full length")


def test_a_run_that_looks_ahead_ends_with_that_reason_alone(
    reviews: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cells_here: None,
) -> None:
    def found(*_: object) -> list[str]:
        raise LooksAhead("attention 'mine' looks ahead")

    monkeypatch.setattr("lra_bench.conduct.check_conduct", found)
    record = run_cell(plans_of(reviews, tmp_path, "linear")[0])
    assert (record.status, record.reason, record.steps) == ("failed", "attention 'mine' looks ahead", 0)
    assert "Traceback" not in capsys.readouterr().err
