"""Weights and inputs that several files of tests use."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def shaken(model: Model) -> Model:
    """With every parameter drawn anew, in float64 and evaluation.

    As initialised, biases and norms do nothing, and tied embeddings make a model repeat its last token whatever else
    it is given.
    """
    torch.manual_seed(7)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.7)
        else:  # biases and the weights of norms
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval().double()


def ragged(*lengths: int) -> tuple[Tensor, Tensor]:
    """Ids from 3 to 12 of sequences of these lengths, padded with 0, and the padding mask."""
    mask = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
    return torch.randint(3, 13, mask.shape).masked_fill(mask, 0), mask
