"""Counting what operations read and write."""

import pytest
import torch

from benchmarks.traffic import Traffic, compiled_block, eager, host_ms


def test_operations_count_what_they_take_and_return() -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 2)
    with Traffic() as traffic:
        product = a @ b  # 32, 16 and 8 numbers
        product.view(8)[1:].t()  # views move nothing
        b.expand(5, 8, 2).sum()  # 16 numbers, not 80, and 1
    assert traffic.bytes == 4 * (32 + 16 + 8 + 16 + 1)
    assert traffic.operations == 2


@pytest.mark.slow
@pytest.mark.usefixtures("own_accelerator")
def test_a_compiled_block_moves_less_than_an_eager_one() -> None:
    one, two = (eager("linear", 64, layers).bytes for layers in (1, 2))
    assert 0 < compiled_block("linear", 64) < 0.9 * (two - one)


@pytest.mark.usefixtures("own_accelerator")
def test_the_host_s_time_is_that_of_a_step() -> None:
    assert 0.1 < host_ms("linear", compiled=False) < 1e3
