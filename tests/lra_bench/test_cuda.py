"""A CUDA card against the CPU: `make test-cuda` runs this on a machine that has one, `make test` leaves it out."""

import dataclasses
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only

from lra_bench.batching import Batch, DeviceSplit, TrainingOrder
from lra_bench.build import build_model
from lra_bench.compiling import compiles
from lra_bench.conduct import check_conduct
from lra_bench.config import RunConfig
from lra_bench.machine import card_busy_percent
from lra_bench.memory import MIB, PeakMemory
from lra_bench.objectives import Objective, objective_of
from lra_bench.profiler import profile_training
from lra_bench.resolve import resolve
from lra_bench.sharing import AtWork
from lra_bench.step import TrainingStep, build_accelerator
from lra_bench.trainer import Trainer
from models import build_decoder, build_translator
from tasks import PackedSequences, Split, load_task

from ..benchmarks.test_decode import CONSTANT_STATES, check_captured, check_compiled, each_compiled
from ..models.test_decoding_step import SETTINGS as FUSED
from ..models.test_decoding_step import SHAPES, check_fused
from .conftest import TINY, padded
from .test_cli import SETTINGS, lra_bench
from .test_device import CELLS, check_bf16

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no card, or hidden: `make test-cuda` shows it"),
]
CPU, CARD = torch.device("cpu"), torch.device("cuda")
STILL = {**TINY, "model.dropout": 0.0, "model.attention_dropout": 0.0}
DRAWING = ["rfa", "rfa-arccos"]  # other random matrices at every pass
each_cell = pytest.mark.parametrize(("task", "model"), CELLS)
each_classifier = pytest.mark.parametrize("model", [model for task, model in CELLS if task == "text"])
each_decoder = pytest.mark.parametrize("model", [model for task, model in CELLS if task == "mt"])


@pytest.fixture
def accelerator(own_accelerator: None) -> Accelerator:
    return Accelerator()


@pytest.fixture
def bf16_accelerator(own_accelerator: None) -> Iterator[Accelerator]:
    overrides = {"train.precision": "bf16"}
    accelerator = build_accelerator(resolve("text", "rfa", "quick", device="cuda", overrides=overrides))
    yield accelerator
    accelerator.free_memory()
    torch.set_float32_matmul_precision("highest")


def moved(batch: Batch, device: torch.device) -> Batch:
    return dataclasses.replace(
        batch,
        tokens=tuple(t.to(device) for t in batch.tokens),
        padding_masks=tuple(t.to(device) for t in batch.padding_masks),
        labels=batch.labels.to(device),
    )


def build_step(config: RunConfig, accelerator: Accelerator, compiled: bool = False) -> tuple[Objective, TrainingStep]:
    torch.manual_seed(0)
    objective = objective_of(config)
    model = objective.build_model().to(accelerator.device).train()
    return objective, TrainingStep(objective, model, accelerator, compiled)


@each_cell
def test_ours_behave_on_a_card(task: str, model: str, bf16_accelerator: Accelerator) -> None:
    assert check_conduct(resolve(task, model, "quick", device="cuda", overrides=TINY), CARD) == []


@each_cell
def test_losses_and_gradients_are_those_of_the_cpu(task: str, model: str) -> None:
    objective = objective_of(resolve(task, model, "quick", overrides=TINY))
    network, batch = objective.build_model().eval().double(), padded(objective.random_batch())  # nothing is drawn
    results = []
    for device in (CPU, CARD):
        network.to(device).zero_grad()
        loss = objective.loss(objective.outputs(network, moved(batch, device)), moved(batch, device))
        loss.backward()
        gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
        results.append((loss.item(), torch.cat(gradients).cpu()))
    (own_loss, own_gradients), (card_loss, card_gradients) = results
    assert card_loss == pytest.approx(own_loss, rel=1e-6)  # a language model's is a sum in float32
    torch.testing.assert_close(card_gradients, own_gradients)


@each_cell
def test_gradients_under_bf16_are_close_to_those_under_fp32(task: str, model: str) -> None:
    check_bf16(task, model, "cuda")


def check_compiled_steps(
    task: str,
    model: str,
    overrides: dict[str, Any],
    accelerator: Accelerator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Losses of compiled steps are those of eager ones."""
    overrides = {**STILL, "train.precision": "fp32", **overrides}
    config = resolve(task, model, "quick", device="cuda", overrides=overrides)
    torch.compiler.reset()
    losses = []
    with torch._inductor.config.patch(fallback_random=True):  # so that both draw the same
        assert compiles(config, accelerator), capsys.readouterr().err
        for compiled in (False, True):
            objective, step = build_step(config, accelerator, compiled)
            batch = moved(padded(objective.random_batch()), accelerator.device)
            torch.manual_seed(1)
            losses.append([step(batch).item() for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@each_classifier
@pytest.mark.parametrize("compile_", [True, "reduce-overhead"])
@pytest.mark.parametrize("at_once", [None, 4])
def test_compiled_steps_are_the_eager_ones(
    model: str, at_once: int | None, compile_: bool | str, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"train.compile": compile_, "train.micro_batch_size": at_once}
    if compile_ == "reduce-overhead" and model in DRAWING:  # capturing draws as well, it seems
        overrides["attention.redraw"] = False
    check_compiled_steps("text", model, overrides, accelerator, capsys)


@pytest.mark.parametrize(("task", "model"), [("lm", "rfa-gate"), ("mt", "sdpa"), ("mt", "rfa"), ("mt", "rfa-gate")])
def test_captured_steps_of_decoders_are_the_eager_ones(
    task: str, model: str, accelerator: Accelerator, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"train.compile": "reduce-overhead"} | ({"attention.redraw": False} if model != "sdpa" else {})
    check_compiled_steps(task, model, overrides, accelerator, capsys)


@pytest.mark.parametrize("model", DRAWING)
def test_every_replay_of_a_graph_draws_anew(model: str, accelerator: Accelerator) -> None:
    overrides = {**STILL, "train.compile": "reduce-overhead", "train.lr": 1e-30}
    config = resolve("text", model, "quick", device="cuda", overrides=overrides)
    torch.compiler.reset()
    assert compiles(config, accelerator)
    objective, step = build_step(config, accelerator, compiled=True)
    batch = moved(objective.random_batch(), accelerator.device)
    assert len({step(batch).item() for _ in range(8)}) == 8  # the weights stay the same


@each_cell
def test_a_training_step_never_waits_for_the_host(task: str, model: str, bf16_accelerator: Accelerator) -> None:
    # So many tokens that embeddings sort them in their backward pass.
    config = resolve(task, model, "quick", device="cuda", overrides={**TINY, "data.max_len": 512})
    objective, step = build_step(config, bf16_accelerator)
    inputs = [PackedSequences.from_list([[1, 2, 3] * 200] * 24) for _ in range(1 + (task in ("retrieval", "mt")))]
    data = objective.on_device(Split(tuple(inputs), np.zeros(24, np.int64)).truncate(512), bf16_accelerator.device)
    order = TrainingOrder(24, config.train.batch_size, seed=0)
    step(data.batch(order[0]))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in (1, 2):
            step(data.batch(order[number]))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_from_host_memory_are_those_from_the_card() -> None:
    packed = PackedSequences.from_list([[1] * n for n in (5, 130, 9)])
    split, chosen = Split((packed, packed), np.arange(3)), np.array([2, 1])
    one, other = (DeviceSplit(split, 200, CARD, resident=resident).batch(chosen) for resident in (True, False))
    for a, b in zip((*one.model_inputs(), one.labels), (*other.model_inputs(), other.labels), strict=True):
        assert a is not None
        assert a.device.type == "cuda"
        assert torch.equal(a, b)  # type: ignore[arg-type]


def test_full_batches_go_through_flash_attention_and_padded_ones_do_not(bf16_accelerator: Accelerator) -> None:
    config = resolve("text", "sdpa", "quick", device="cuda", overrides=STILL)
    assert config.train.precision == "bf16"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        profile = profile_training(config, bf16_accelerator, full=True)
        with pytest.raises(RuntimeError, match="No available kernel"):
            profile_training(config, bf16_accelerator)
    assert profile.step_time_ms > 0
    assert profile.peak_memory_mb
    assert profile.peak_reserved_mb
    assert profile.peak_reserved_mb >= profile.peak_memory_mb


def test_peak_memory_is_what_tensors_held_at_once() -> None:
    with PeakMemory(CARD) as memory:
        before = torch.cuda.memory_allocated() / MIB
        for _ in range(3):
            torch.ones(64 * 2**20, dtype=torch.uint8, device=CARD)
    assert memory.allocated_mb - before == pytest.approx(64, abs=1)
    assert memory.reserved_mb
    assert memory.reserved_mb >= 64


@each_decoder
def test_the_same_tokens_are_generated_and_translated(model: str) -> None:
    config = resolve("mt", model, "quick", overrides=STILL)
    attention, source = config.attention, torch.randint(3, 13, (3, 9))
    mask = torch.arange(9) >= torch.tensor([9, 4, 6])[:, None]
    decoder = build_decoder(attention.name, vocab_size=13, max_len=40, **attention.settings).double().eval()
    translator = build_translator(
        attention.name, vocab_size=13, max_len=24, cross=attention.cross, **attention.settings
    )
    translator.double().eval()
    found: list[tuple[Tensor, Tensor]] = []
    for device in (CPU, CARD):
        text = decoder.to(device).generate(source.to(device), steps=25)
        sentences = translator.to(device).translate(
            source.masked_fill(mask, 0).to(device), mask.to(device), begin=1, end=2, max_steps=20, beam=4
        )
        found.append((text.cpu(), sentences.cpu()))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "settings"), CONSTANT_STATES)
def test_a_captured_step_is_the_step(name: str, settings: dict[str, Any]) -> None:
    check_captured(name, settings, CARD)


@pytest.mark.parametrize(("name", "settings"), FUSED)
@pytest.mark.parametrize(("dim", "heads"), [*SHAPES, (512, 8), (256, 2)])
@pytest.mark.parametrize("bf16", [False, True])
def test_a_fused_step_is_the_step(
    name: str, settings: dict[str, Any], dim: int, heads: int, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_fused(name, settings, dim, heads, "cuda", monkeypatch, bf16)


@each_compiled
def test_a_compiled_step_of_decoding_is_the_step(name: str) -> None:
    check_compiled(name, "cuda")


def test_a_stopped_run_goes_on_to_the_same_numbers(reviews: Path, tmp_path: Path, accelerator: Accelerator) -> None:
    """But for what a card adds up in another order every time; dropout and redrawn features are the same."""
    overrides = {**TINY, "model.dropout": 0.1, "train.precision": "fp32"}
    config, task = resolve("text", "rfa", "quick", device="cuda", overrides=overrides), load_task("text", reviews, 64)

    def trainer(name: str) -> Trainer:
        torch.manual_seed(0)
        return Trainer(config, build_model(config), task, accelerator, tmp_path / f"{name}.pt")

    whole = trainer("whole").fit()
    broken = trainer("broken")
    step = broken.training_step

    def stopping(batch: Batch) -> Tensor:
        if broken.progress.step == 7:
            raise KeyboardInterrupt
        return step(batch)

    stopping.model, stopping.optimizer = step.model, step.optimizer  # type: ignore[attr-defined]
    broken.training_step = stopping  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        broken.fit()
    torch.manual_seed(12345)
    again = trainer("broken").fit()
    assert np.array(again.loss_curve) == pytest.approx(np.array(whole.loss_curve), abs=1e-4)


@pytest.mark.parametrize("compile_", ["--compile", "--no-compile", "--set=train.compile=reduce-overhead"])
def test_bench_on_a_card(reviews: Path, tmp_path: Path, compile_: str) -> None:
    command = ("bench", "--task", "text", "--models", "sdpa,rfa,performer", "--protocol", "quick", "--data", reviews)
    done = lra_bench(*command, "--out", tmp_path, compile_, *SETTINGS, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "runs without torch.compile" not in done.stderr
    table = pd.read_csv(tmp_path / "leaderboard.csv")
    table = table[table["status"] != "baseline"]
    assert (table["status"] == "ok").all()
    assert set(table["device"]) == {torch.cuda.get_device_name()}
    assert set(table["precision"]) == {"bf16"}
    assert set(table["compiled"]) == {compile_ != "--no-compile"}
    assert table["peak_memory_mb"].gt(0).all()


def test_a_length_that_the_card_has_no_room_for_is_a_row(tmp_path: Path) -> None:
    command = ("profile", "--models", "softmax,rfa", "--lengths", "256,131072", "--batch-size", "4", "--no-compile")
    done = lra_bench(*command, "--out", tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "efficiency.csv").set_index(["model", "mode", "seq_len"])["status"]
    assert table["softmax", "train", 131072] == "oom"
    assert set(table.drop([("softmax", "train", 131072), ("softmax", "inference", 131072)])) == {"ok"}


def test_several_cells_share_a_card(reviews: Path, tmp_path: Path) -> None:
    command = ("sweep", "--task", "text", "--models", "softmax,rfa", "--protocol", "quick", "--data", reviews)
    done = lra_bench(*command, "--out", tmp_path, "--workers", "2", *SETTINGS, timeout=300)
    assert done.returncode == 0, done.stderr


def test_who_measures_on_a_card_has_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    order = []

    def measure() -> None:
        with AtWork("cuda") as other, other.alone():
            order.append("measured")

    with AtWork("cuda") as at_work:
        (gate,) = tmp_path.glob("*/*.gate")
        assert gate.name == f"gpu-{torch.cuda.get_device_properties(CARD).uuid}.gate"
        at_work.give_way(lambda: None)
        thread = threading.Thread(target=measure)
        thread.start()
        time.sleep(0.5)
        order.append("step")
        at_work.give_way(lambda: None)
        order.append("step")
    thread.join()
    assert order == ["step", "measured", "step"]


def test_what_others_do_on_the_card_is_noticed() -> None:
    work = "import torch\na = torch.rand(4096, 4096, device='cuda')\nprint(flush=True)\nwhile a.sum().item(): a @ a"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        found = card_busy_percent(CARD)
        other.kill()
    if found is None:
        pytest.skip("nvidia-smi does not tell")
    assert found > 50


def test_random_states_travel_in_checkpoints() -> None:
    from lra_bench.checkpoint import random_state, set_random_state

    state = random_state(CARD)
    first = torch.rand(4, device=CARD)
    set_random_state(tree_map_only(Tensor, torch.clone, state), CARD)
    assert torch.equal(torch.rand(4, device=CARD), first)
