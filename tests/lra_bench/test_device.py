"""What a GPU asks of a training step, tried without one: bf16, and to stay on its device.

Meta tensors have a device, shapes and no data: what a GPU would have to wait for (`.item()`, `.nonzero()`, a copy from
host memory) cannot be done with them.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra_bench.batching import DeviceSplit
from lra_bench.config import ConfigError
from lra_bench.objectives import objective_of
from lra_bench.protocols import names
from lra_bench.resolve import resolve
from lra_bench.step import add_gradients, build_accelerator
from models import build_decoder
from tasks import PackedSequences, Split

from .conftest import TINY

META = torch.device("meta")


def runs(task: str, model: str) -> bool:
    """Whether the model has the forms of attention that the task needs."""
    with contextlib.suppress(ConfigError):
        return bool(resolve(task, model, "quick"))
    return False


CELLS = [(task, model) for task in ("text", "retrieval", "lm", "mt") for model in names("models") if runs(task, model)]


class OneDevice(TorchDispatchMode):
    """Raises where an operation reads a tensor of another device; single numbers travel with a kernel's launch."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value.dim() and value.device != META:
                raise AssertionError(f"{func} reads {tuple(value.shape)} from {value.device}")
        return func(*args, **kwargs or {})


class LeakInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] @ torch.ones(4, 4)


@pytest.fixture
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows no meta device."""
    monkeypatch.setattr("torch.autocast", lambda *args, **kwargs: contextlib.nullcontext())


def check_bf16(task: str, model: str, device: str) -> None:
    """Gradients under bf16 autocast are close to those in fp32. Without dropout, whose draws go by the precision."""
    overrides = {**TINY, "model.dropout": 0.0, "model.attention_dropout": 0.0}
    objective = objective_of(resolve(task, model, "quick", overrides=overrides))
    torch.manual_seed(0)
    network = objective.build_model().to(device).train()
    with torch.device(device):
        batch = objective.random_batch()
    gradients = []
    for enabled in (True, False):
        torch.set_float32_matmul_precision("high" if enabled and device == "cuda" else "highest")  # as a run has it
        torch.manual_seed(1)
        network.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            loss = objective.loss(objective.outputs(network, batch), batch)
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    rounded, exact = gradients
    assert 0 < (rounded - exact).norm() < 0.1 * exact.norm()


@pytest.mark.usefixtures("own_accelerator")
def test_products_that_bf16_leaves_in_fp32_are_rounded_to_tf32_and_those_of_fp32_are_not() -> None:
    found = {}
    for precision in ("bf16", "fp32"):
        AcceleratorState._reset_state()
        build_accelerator(resolve("text", "rfa", "quick", device="cuda", overrides={"train.precision": precision}))
        found[precision] = torch.backends.cuda.matmul.fp32_precision, torch.backends.cuda.matmul.allow_tf32
    assert found == {"bf16": ("tf32", True), "fp32": ("ieee", False)}


@pytest.mark.parametrize(("task", "model"), CELLS)
def test_gradients_under_bf16_are_close_to_those_under_fp32(task: str, model: str) -> None:
    check_bf16(task, model, "cpu")


@pytest.mark.parametrize(("task", "model"), CELLS)
def test_a_batch_without_padding_needs_no_masks(task: str, model: str) -> None:
    objective = objective_of(resolve(task, model, "quick", overrides=TINY))
    network, batch = objective.build_model().eval(), objective.random_batch()
    full = dataclasses.replace(batch, full=True)
    torch.testing.assert_close(objective.outputs(network, full), objective.outputs(network, batch))


@pytest.mark.usefixtures("no_autocast")
@pytest.mark.parametrize(("task", "model"), CELLS)
def test_a_training_step_never_waits_for_the_host(task: str, model: str) -> None:
    objective = objective_of(resolve(task, model, "quick", overrides={**TINY, "train.micro_batch_size": 4}))
    network = objective.build_model().to(META).train()
    with META:
        batch = objective.random_batch()
    with OneDevice():
        add_gradients(objective, network, batch)
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        with torch.inference_mode():
            objective.outputs(network.eval(), batch)
    without = [name for name, p in network.named_parameters() if p.requires_grad and p.grad is None]
    assert not without


@pytest.mark.usefixtures("no_autocast")
@pytest.mark.parametrize("model", [model for task, model in CELLS if task == "lm"])
def test_greedy_decoding_never_waits_for_the_host(model: str) -> None:
    config = resolve("lm", model, "quick", overrides=TINY)
    network = build_decoder(config.attention.name, vocab_size=9, max_len=16, **config.attention.settings)
    network = network.to(META).eval()
    prompt = torch.zeros(2, 3, dtype=torch.long, device=META)
    with OneDevice():
        assert network.generate(prompt, steps=5).shape == (2, 8)


def test_a_batch_of_a_resident_split_is_gathered_on_the_device() -> None:
    split = Split((PackedSequences.from_list([[1, 2, 3], [4]]),), torch.tensor([0, 1]).numpy())
    batch = DeviceSplit(split, 8, META, resident=True).batch(torch.tensor([1, 0]).numpy())
    assert {t.device for t in (*batch.tokens, *batch.padding_masks, batch.labels)} == {META}


@pytest.mark.parametrize(
    ("leak", "message"),
    [
        (lambda x: x @ torch.ones(4, 4), "from cpu"),
        (lambda x: x + torch.tensor([1.0] * 4).to(x.device), "from cpu"),
        (lambda x: x * float(x.sum()), "cannot be called on meta tensors"),
        (lambda x: x[x > 0], "nonzero"),
        (lambda x: LeakInBackward.apply(x.requires_grad_()).sum().backward(), "from cpu"),
    ],
)
def test_these_checks_can_fail(leak: Callable[[Tensor], Any], message: str) -> None:
    # Some come as AssertionError, some as RuntimeError, by who notices.
    with OneDevice(), pytest.raises(Exception, match=message):
        leak(torch.ones(4, 4, device=META))
