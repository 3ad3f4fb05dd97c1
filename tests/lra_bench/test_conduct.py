"""An attention that sees what it must not, or nothing, is found out before its scores stand in a table."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra_bench.cell import run_cell
from lra_bench.conduct import (
    AHEAD,
    ALONE,
    EXAMPLES,
    LENGTH,
    LENGTHS,
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
        return super().attend(q, k, v, padding_mask) + everything - v.flip(2).sum(dim=2, keepdim=True)


class Forgetful(SoftmaxAttention):
    """From one part of a sequence to the next it loses the last of the tokens it has seen."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        y, state = super().attend_causal(q, k, v, x, state, keep_state)
        return y, state and state._replace(length=state.length - 1)


class Drawing(SoftmaxAttention):
    """Draws something at every pass, in evaluation as well."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k * torch.rand(k.shape[-1]), v, padding_mask) * torch.rand(())


class Dropping(SoftmaxAttention):
    """As by torch's function, which drops in evaluation as well unless it is told not to."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.dropout(super().attend(q, k, v, padding_mask), self.dropout)


class SeedingAtFirst(SoftmaxAttention):
    """So that its random features are always the same, as it thinks."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        torch.manual_seed(0)


class SeedingAtEveryPass(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        torch.manual_seed(0)
        return super().attend(q, k, v, padding_mask)


class FromNothing(Peeking):
    """Its last projection is learned from zero."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        for parameter in self.out_proj.parameters():
            nn.init.zeros_(parameter)


class OfAnotherLayout(SoftmaxAttention):
    """As by a kernel that takes `[batch, seq_len, heads, head_dim]`: heads see each other, tokens do not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        return self.attend(q, k, v, None), None

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return k, v

    def read(self, q: Tensor, memory: Any) -> Tensor:
        return self.attend(q, *memory, None)


class SequenceFirst(OfAnotherLayout):
    """As by a module that takes `[seq_len, batch, dim]`: examples see each other, tokens do not."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(*(t.transpose(0, 2) for t in (q, k, v))).transpose(0, 2)


class OfTorch(nn.Module):
    """torch's own layer, whose sequences come first unless it is told otherwise."""

    def __init__(self, dim: int, num_heads: int, max_len: int, *, batch_first: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=batch_first)

    def forward(self, x: Tensor, *, padding_mask: Tensor | None) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Silent(SoftmaxAttention):
    """Nothing comes out of it before it has learned."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask) * 0.0


class BlockLocal(SoftmaxAttention):
    """Sees its block alone; of 50 or 192 tokens the last one is a block of its own, and so is the one in the middle."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        sizes = [25, 24, 1] if q.shape[2] == 50 else [96, 1, 95]
        parts = zip(*(t.split(sizes, dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([F.scaled_dot_product_attention(*part) for part in parts], dim=2)


class HalfPrecision(OfAnotherLayout):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.dtype != torch.bfloat16:
            raise TypeError("bfloat16 alone")
        return super().attend(q, k, v, padding_mask)


class Hoarding(SoftmaxAttention):
    """Has a layer that torch does not know of."""

    def __init__(self, *sizes: int, **shared: Any) -> None:
        super().__init__(*sizes, **shared)
        self.layers = [nn.Linear(self.head_dim, self.head_dim)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        return super().attend(q, k, self.layers[0](v), padding_mask)


class Refusing(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        raise TypeError("64 heads alone")


class FullLength(Maskless):
    """Written for the one length that it was built for, as much of research code is."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if q.shape[2] != self.max_len:
            raise ValueError("of another length")
        return super().attend(q, k, v, padding_mask)


class Averaging(SoftmaxAttention):
    """Divides by all tokens, real or not, as what transforms or weighs by position in a sequence does."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        if padding_mask is not None:
            v = v.masked_fill(padding_mask[:, None, :, None], 0.0)
        return v + v.mean(2, keepdim=True)

    def summarize(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Any:
        return super().summarize(k, v * (100 / k.shape[2]), padding_mask)


class InBlocks(SoftmaxAttention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        q.unflatten(2, (-1, 96))
        return super().attend(q, k, v, padding_mask)


class InChunks(SoftmaxAttention):
    """Keys of earlier chunks and of its own are summed up for each, the own among the earlier ones by mistake."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        outputs = []
        for start in range(0, q.shape[2], 256):
            part = slice(start, start + 256)
            y = F.scaled_dot_product_attention(q[:, :, part], k[:, :, part], v[:, :, part], is_causal=True)
            outputs.append(y + v[:, :, : start + 256].mean(2, keepdim=True) * bool(start))
        return torch.cat(outputs, dim=2), None


class AtOnce(Peeking):
    """Has no use for a state."""

    def attend_causal(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any, keep_state: bool) -> Any:
        if keep_state:
            raise NotImplementedError
        return super().attend_causal(q, k, v, x, state, keep_state)


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


@torch.no_grad()
def test_what_cannot_be_tried_is_told() -> None:
    asked = (
        "looks at padding or depends on how much is padded or mixes examples or mixes no tokens or draws at random in"
        " evaluation or has weights that are no parameters or seeds torch's generator itself"
    )
    assert faults_of(Refusing, 50) == [f"{UNKNOWN}{asked} (TypeError: 64 heads alone)"]
    assert faults_of(AtOnce, 50, "causal") == [AHEAD, f"{UNKNOWN}loses its state (NotImplementedError: )"]


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
    def found(*_: object) -> str:
        raise LooksAhead("attention 'mine' looks ahead")

    monkeypatch.setattr("lra_bench.conduct.check_conduct", found)
    record = run_cell(plans_of(reviews, tmp_path, "linear")[0])
    assert (record.status, record.reason, record.steps) == ("failed", "attention 'mine' looks ahead", 0)
    assert "Traceback" not in capsys.readouterr().err
