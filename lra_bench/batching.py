"""Batches assembled on the device from packed arrays: no per-item Python, no workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks import PackedSequences, Split

# Batches are trimmed to their longest sequence, rounded up to this many tokens so that few shapes occur.
LENGTH_MULTIPLE = 128


@dataclass(frozen=True)
class Batch:
    """tokens: per input `[batch, seq_len]` int64; padding_masks: the same shapes, True = padding; labels `[batch]`."""

    tokens: tuple[Tensor, ...]
    padding_masks: tuple[Tensor, ...]
    labels: Tensor

    def model_inputs(self) -> tuple[Tensor, ...]:
        """tokens and mask of each input in turn, as the classifiers take them."""
        return tuple(t for pair in zip(self.tokens, self.padding_masks, strict=True) for t in pair)


class DeviceSplit:
    """A split whose packed tokens live on `device`, where its batches are gathered."""

    def __init__(self, split: Split, max_len: int, device: torch.device) -> None:
        self.split, self._max_len = split, max_len
        # One token more than there are, so that even a set of nothing but empty sequences can be gathered from.
        self._inputs = [
            tuple(
                torch.from_numpy(a).to(device)
                for a in (np.append(s.tokens, s.tokens.dtype.type(0)), s.starts, s.lengths)
            )
            for s in split.inputs
        ]
        self._labels = torch.from_numpy(split.labels).to(device)

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The examples at `indices`, padded with 0 to their longest, rounded up to LENGTH_MULTIPLE or max_len."""
        # Lengths are known on the host too, so that choosing the shape does not wait for the device.
        on_device = torch.from_numpy(indices).to(self._labels.device, non_blocking=True)
        gathered = [
            _gather(tensors, on_device, self._padded_length(sequences, indices))
            for tensors, sequences in zip(self._inputs, self.split.inputs, strict=True)
        ]
        tokens, masks = zip(*gathered, strict=True)
        return Batch(tokens, masks, self._labels[on_device])

    def by_length(self, batch_size: int) -> list[NDArray[np.int64]]:
        """Every example once, similar lengths together: the cheapest order where order does not matter."""
        total = sum(sequences.lengths for sequences in self.split.inputs)
        order = np.argsort(total, kind="stable")
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]

    def _padded_length(self, sequences: PackedSequences, indices: NDArray[np.int64]) -> int:
        longest = max(1, int(sequences.lengths[indices].max()))
        return min(-(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, self._max_len)


def _gather(tensors: tuple[Tensor, ...], indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
    tokens, starts, lengths = tensors
    position = torch.arange(length, device=tokens.device)
    mask = position >= lengths[indices, None]  # [batch, length]
    where = (starts[indices, None] + position).clamp_max(len(tokens) - 1)
    return tokens[where].long().masked_fill(mask, 0), mask


class TrainingOrder:
    """Which examples each training step sees: a function of (seed, step), so that a resumed run goes on exactly.

    Every epoch is a new permutation cut into whole batches; the few examples left over fall differently each time.
    """

    def __init__(self, num_examples: int, batch_size: int, seed: int) -> None:
        self.num_examples, self.batch_size, self.seed = num_examples, min(batch_size, num_examples), seed
        self.steps_per_epoch = num_examples // self.batch_size
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.num_examples)
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]
