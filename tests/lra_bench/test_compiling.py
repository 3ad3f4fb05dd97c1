"""Compiled training steps: when, and what happens where they cannot be had."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch._dynamo.utils import counters

from lra_bench.build import build_model
from lra_bench.compiling import compiles
from lra_bench.resolve import resolve
from lra_bench.trainer import Trainer
from tasks import load_task

from .conftest import tiny


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_auto_compiles_long_runs_alone() -> None:
    assert resolve("mt", "rfa", "compact").train.compile is False  # compiled batches are padded to the full length
    assert resolve("text", "rfa", "quick").train.compile is False
    assert resolve("text", "softmax", "compact").train.compile is True
    assert resolve("text", "rfa", "compact", overrides={"train.compile": False}).train.compile is False
    assert resolve("text", "rfa", "quick", overrides={"train.compile": True}).overrides == "train.compile=true"


def test_on_a_card_long_runs_are_replayed_as_cuda_graphs() -> None:
    def settled(**options: Any) -> object:
        return resolve("text", "rfa", "compact", overrides=options, device="cuda").train.compile

    assert settled() == "reduce-overhead"
    assert settled(**{"train.compile": True}) is True
    assert settled(**{"train.steps": 10}) is False


def test_without_a_compiler_one_line_says_so(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lra_bench.compiling._missing_compiler", lambda device: "no C++ compiler found")
    assert not compiles(tiny(train__compile=True), accelerator)
    assert capsys.readouterr().err == "warning: rfa runs without torch.compile (no C++ compiler found)\n"
    assert not compiles(tiny(train__compile=False), accelerator)
    assert capsys.readouterr().err == ""


def test_an_attention_that_does_not_compile_runs_without(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise RuntimeError("cannot be lowered\nand many lines more")

    torch.compiler.reset()
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)
    assert not compiles(tiny(train__compile=True), accelerator)
    error = capsys.readouterr().err
    assert error.startswith("warning: rfa runs without torch.compile (")
    assert error.count("\n") == 1


def test_a_compiled_run_learns_what_an_eager_one_learns(
    accelerator: Accelerator, reviews: Path, tmp_path: Path
) -> None:
    task = load_task("text", reviews, 64)
    curves = []
    for compile_ in (False, True, "reduce-overhead"):
        config = tiny("rfa", train__compile=compile_, attention__redraw=False, train__steps=8)
        counters["inductor"].clear()
        compiled = compiles(config, accelerator)
        assert compiled == bool(compile_)
        # CUDA graphs are what the mode asks for; on a CPU torch leaves them out, and counts that it did.
        assert bool(counters["inductor"]["cudagraph_skips"]) == (compile_ == "reduce-overhead")
        torch.manual_seed(0)
        trainer = Trainer(config, build_model(config), task, accelerator, tmp_path / f"{compile_}.pt", compiled)
        curves.append([loss for _, loss in trainer.fit().loss_curve])
        trainer.test()
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    assert curves[1] == curves[2]
