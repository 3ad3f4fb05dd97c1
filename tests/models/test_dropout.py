"""Dropout by 16 bits an element: what of it is random, and what is not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from models.ops.dropout import LEVELS, drop


def zeros(x: Tensor) -> Tensor:
    return x == 0


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_elements_are_dropped_as_torch_drops(p: float) -> None:
    x = torch.ones(1 << 20, dtype=torch.float64)
    five_deviations = 5 * (p * (1 - p) / len(x)) ** 0.5
    for dropped in (drop(x, p), F.dropout(x, p)):
        assert zeros(dropped).double().mean().item() == pytest.approx(p, abs=five_deviations + 0.5 / LEVELS)
        assert dropped.mean().item() == pytest.approx(1, abs=five_deviations / (1 - p))


def test_elements_of_one_draw_are_independent() -> None:
    dropped = zeros(drop(torch.ones(1 << 20), 0.25)).double()
    for apart in (1, 2, 3, 4, 5):
        both = (dropped[apart:] * dropped[:-apart]).mean().item()
        assert both == pytest.approx(0.25**2, abs=5 * (0.25**2 / len(dropped)) ** 0.5)


@settings(max_examples=50, deadline=None)
@given(shape=st.lists(st.integers(0, 7), max_size=4), p=st.floats(0.01, 0.99), transpose=st.booleans())
def test_what_is_kept_and_its_gradient_are_scaled(shape: list[int], p: float, transpose: bool) -> None:
    x = torch.rand(shape, dtype=torch.float64).add(1).requires_grad_()
    given_x = x.transpose(0, -1) if transpose and shape else x
    y = drop(given_x, p)
    scale = LEVELS / (LEVELS - round(p * LEVELS))
    assert scale == pytest.approx(1 / (1 - p), rel=1e-3)
    (gradient,) = torch.autograd.grad(y.sum(), given_x)
    torch.testing.assert_close(gradient, ~zeros(y) * torch.full_like(y, scale))
    torch.testing.assert_close(y, given_x * gradient)


def test_nothing_and_everything() -> None:
    x = torch.ones(9)
    assert drop(x, 0.0) is x
    assert zeros(drop(x, 1.0)).all()
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="probability"):
            drop(x, p)


def test_drawn_anew_and_from_the_seeded_generator() -> None:
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = drop(x, 0.5), drop(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(drop(x, 0.5), first)
    assert not torch.equal(first, second)


def test_compiled_it_drops_the_same_in_both_directions() -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return drop(x, 0.5), drop(torch.tanh(x), 0.25)

    results = []
    for function in (twice, torch.compile(twice, dynamic=False)):
        x = torch.linspace(1, 2, 2000).requires_grad_()
        torch.manual_seed(0)
        a, b = function(x)
        (a.sum() + b.sum()).backward()
        results.append((a, b, x.grad))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(eager, compiled)
    a, b, _ = results[0]
    assert not torch.equal(zeros(a), zeros(b))
