"""A step computed in parts is the step of the whole batch."""

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from lra_bench.build import estimate_step
from lra_bench.objectives import objective_of
from lra_bench.resolve import resolve
from lra_bench.step import TrainingStep, add_gradients

from .conftest import TINY, padded, tiny


@pytest.mark.parametrize("at_once", [1, 3, 4, 7, 8, 20])
@pytest.mark.parametrize("task", ["text", "retrieval", "lm", "mt"])
def test_parts_have_the_gradients_of_the_whole_batch(task: str, at_once: int) -> None:
    whole = objective_of(resolve(task, "softmax", "quick", overrides=TINY))
    parts = objective_of(resolve(task, "softmax", "quick", overrides={**TINY, "train.micro_batch_size": at_once}))
    model, batch = whole.build_model().double().eval(), padded(whole.random_batch())  # nothing is drawn
    seen: list[int] = []
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))

    def loss_and_gradients(objective: object) -> Tensor:
        model.zero_grad()
        loss = add_gradients(objective, model, batch)  # type: ignore[arg-type]
        return torch.cat([loss.view(1), *(p.grad.flatten() for p in model.parameters() if p.grad is not None)])

    expected = loss_and_gradients(whole)
    assert seen == [8]
    torch.testing.assert_close(loss_and_gradients(parts), expected, rtol=1e-5, atol=1e-6)  # losses are float32
    assert sum(seen[1:]) == 8
    assert max(seen[1:]) == min(at_once, 8)


def test_gradients_are_added_to_those_that_are_there() -> None:
    objective = objective_of(tiny("softmax", train__micro_batch_size=3))
    model, batch = objective.build_model().double().eval(), objective.random_batch()
    weight = next(model.parameters())
    add_gradients(objective, model, batch)
    assert weight.grad is not None
    once = weight.grad.clone()
    add_gradients(objective, model, batch)
    torch.testing.assert_close(weight.grad, 2 * once)


def test_a_step_in_parts_updates_once(own_accelerator: None) -> None:
    """From the same weights on the same batch, clipped and with AdamW's moments, to the same weights."""
    after = []
    for at_once in (None, 2):
        config = tiny("softmax", train__micro_batch_size=at_once, model__dropout=0, model__attention_dropout=0)
        torch.manual_seed(0)
        objective = objective_of(config)
        step = TrainingStep(objective, objective.build_model().train(), Accelerator(cpu=True))
        batch = padded(objective.random_batch())
        losses = [step(batch).item() for _ in range(5)]
        after.append(torch.tensor([*losses, *(p.sum().item() for p in step.model.parameters())]))
    torch.testing.assert_close(after[0], after[1], rtol=1e-4, atol=1e-4)
    assert after[0][4] < after[0][0]


def test_parts_take_less_memory_for_the_same_products() -> None:
    whole = estimate_step(tiny("softmax", data__max_len=2048))
    parts = estimate_step(tiny("softmax", data__max_len=2048, train__micro_batch_size=2))
    assert parts.memory_bytes < 0.3 * whole.memory_bytes
    assert parts.flops == whole.flops
