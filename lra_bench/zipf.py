"""Random words that are as common as words are: word n about n^-1 as often as the first (Zipf 1949).

For vocabularies in bands, of which the rarest is the largest: how many words are of it decides what a step costs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def random_words(vocab_size: int, shape: tuple[int, ...]) -> Tensor:
    """Ids from 1 to vocab_size - 1, the smallest the commonest, on torch's current default device."""
    return (vocab_size ** torch.rand(shape)).long().clamp_max(vocab_size - 1)


def share(low: int, high: int, vocab_size: int) -> float:
    """Of these words, how many have ids from `low` to below `high`."""
    return math.log(high / low) / math.log(vocab_size)
