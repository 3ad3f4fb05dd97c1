"""Vocabularies in bands: what a step costs goes by how many of its words are rare."""

import math

import pytest
import torch
from accelerate import Accelerator

from lra_bench.build import estimate_step
from lra_bench.objectives import objective_of
from lra_bench.profiler import profile_training
from lra_bench.resolve import resolve

SIZE = 267_736


def test_random_words_are_as_common_as_words_are() -> None:
    """Uniform ones would nearly all be of the last band, whose logits a step of real text hardly ever makes."""
    torch.manual_seed(0)
    config = resolve("wikitext103", "rfa", "paper")
    objective, (common, rarer) = objective_of(config), config.model.cutoffs
    (tokens,) = objective.random_batch().tokens
    assert 1 <= tokens.min() <= tokens.max() < SIZE
    for high in (10, common, rarer):
        assert (tokens < high).double().mean() == pytest.approx(math.log(high) / math.log(SIZE), abs=0.01)
    second, third = objective.band_shares
    assert ((tokens >= common) & (tokens < rarer)).double().mean() == pytest.approx(second, abs=0.01)
    assert (tokens >= rarer).double().mean() == pytest.approx(third, abs=0.01)


def test_without_bands_words_are_uniform() -> None:
    torch.manual_seed(0)
    objective = objective_of(resolve("lm", "rfa", "quick"))
    (tokens,) = objective.random_batch().tokens
    assert objective.band_shares == []
    assert tokens.double().mean() == pytest.approx(128.5, abs=5)


@pytest.mark.parametrize("parts", [None, 2])
def test_the_estimate_is_what_a_step_takes(parts: int | None, own_accelerator: None) -> None:
    overrides = {"model.dim": 32, "data.max_len": 256, "train.batch_size": 4, "train.micro_batch_size": parts}
    config = resolve("wikitext103", "rfa", "quick", overrides=overrides)
    measured = profile_training(config, Accelerator(cpu=True)).peak_memory_mb
    assert estimate_step(config).memory_bytes / 2**20 == pytest.approx(measured, rel=0.1)
