"""Weights under which nothing is left out of a model's output."""

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def shaken(model: Model, seed: int = 7) -> Model:
    """With every parameter drawn anew, in float64 and evaluation.

    As initialised, biases and norms do nothing, and tied embeddings make a model repeat its last token whatever else
    it is given.
    """
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.7)
        else:  # biases and the weights of norms
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval().double()
