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
    """tokens: per input `[batch, seq_len]` int64; padding_masks: the same shapes, True = padding; labels `[batch]`.

    full: nothing is padded, and models are told so by getting no masks: flash attention takes none.
    """

    tokens: tuple[Tensor, ...]
    padding_masks: tuple[Tensor, ...]
    labels: Tensor
    full: bool = False

    def model_inputs(self) -> tuple[Tensor | None, ...]:
        """tokens and mask of each input in turn, as the classifiers take them; None for a full batch's masks."""
        masks = (None,) * len(self.tokens) if self.full else self.padding_masks
        return tuple(t for pair in zip(self.tokens, masks, strict=True) for t in pair)

    def split(self, size: int) -> list[Batch]:
        """The same examples as batches of `size`, the last one of what is left; nothing is copied or trimmed."""
        if len(self.labels) <= size:
            return [self]
        tokens = zip(*(t.split(size) for t in self.tokens), strict=True)
        masks = zip(*(m.split(size) for m in self.padding_masks), strict=True)
        parts = zip(tokens, masks, self.labels.split(size), strict=True)
        return [Batch(t, m, labels, self.full) for t, m, labels in parts]


class DeviceSplit:
    """A split whose batches are gathered from its packed tokens on `device`.

    The tokens lie on the device where they take less than a quarter of its free memory; otherwise they stay in host
    memory, batches are gathered there and copied over without waiting. max_len: of every input, or one for each;
    resident: decide otherwise; trim: cut batches to their longest sequence rounded up to `multiple`, or leave all
    max_len long.
    """

    def __init__(
        self,
        split: Split,
        max_len: int | tuple[int, ...],
        device: torch.device,
        resident: bool | None = None,
        trim: bool = True,
        multiple: int = LENGTH_MULTIPLE,
    ) -> None:
        self.split, self._device, self._trim, self._multiple = split, device, trim, multiple
        self._max_lens = (max_len,) * len(split.inputs) if isinstance(max_len, int) else max_len
        stores = {id(s.tokens): s.tokens for s in split.inputs}
        self.resident = fits(sum(t.nbytes for t in stores.values()), device) if resident is None else resident
        home = device if self.resident else torch.device("cpu")
        # One token more than there are, so that even a set of nothing but empty sequences can be gathered from.
        tokens = {key: torch.from_numpy(np.append(t, t.dtype.type(0))).to(home) for key, t in stores.items()}
        self._inputs = [
            (tokens[id(s.tokens)], torch.from_numpy(s.starts).to(home), torch.from_numpy(s.lengths).to(home))
            for s in split.inputs
        ]
        self._labels = torch.from_numpy(split.labels).to(home)

    def __len__(self) -> int:
        return len(self.split)

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        """The examples at `indices`, padded with 0 to their longest, rounded up to `multiple` or max_len."""
        # Lengths are known on the host too, so that choosing the shape does not wait for the device.
        chosen = torch.from_numpy(indices).to(self._labels.device, non_blocking=True)
        gathered = [
            _gather(tensors, chosen, self._padded_length(sequences, indices, max_len))
            for tensors, sequences, max_len in zip(self._inputs, self.split.inputs, self._max_lens, strict=True)
        ]
        tokens, masks = zip(*gathered, strict=True)
        return Batch(self._moved(tokens), self._moved(masks), self._moved((self._labels[chosen],))[0])

    def _moved(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The tensors on the device; from host memory through pinned pages, so that the copy overlaps the step."""
        if self.resident or self._device.type == "cpu":
            return tensors
        return tuple(t.pin_memory().to(self._device, non_blocking=True) for t in tensors)

    def _padded_length(self, sequences: PackedSequences, indices: NDArray[np.int64], max_len: int) -> int:
        if not self._trim:
            return max_len
        longest = max(1, int(sequences.lengths[indices].max()))
        return min(-(-longest // self._multiple) * self._multiple, max_len)

    def by_length(self, batch_size: int) -> list[NDArray[np.int64]]:
        """Every example once, similar lengths together: the cheapest order where order does not matter."""
        order = np.argsort(self.split.total_lengths(), kind="stable")
        return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def fits(size: int, device: torch.device) -> bool:
    """Whether so many bytes of tokens are to lie on the device: on a card, where much of its memory is left."""
    return device.type != "cuda" or size < torch.cuda.mem_get_info(device)[0] // 4


def _gather(tensors: tuple[Tensor, ...], indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
    tokens, starts, lengths = tensors
    position = torch.arange(length, device=tokens.device)
    mask = position >= lengths[indices, None]  # [batch, length]
    where = (starts[indices, None] + position).clamp_max(len(tokens) - 1)
    return tokens[where].long().masked_fill(mask, 0), mask


class TrainingOrder:
    """Which examples each training step sees: a function of (seed, step), so that a resumed run goes on exactly.

    Every epoch is a new permutation cut into whole batches; the few examples left over fall differently each time.
    lengths: when given, batches are filled with examples of similar length: every GROUP batches' worth of the
    permutation is sorted by length, and the batches of the epoch are then shuffled.
    """

    GROUP = 50

    def __init__(self, num_examples: int, batch_size: int, seed: int, lengths: NDArray[np.int64] | None = None) -> None:
        self.num_examples, self.batch_size, self.seed = num_examples, min(batch_size, num_examples), seed
        self.steps_per_epoch = num_examples // self.batch_size
        self._lengths = lengths
        self._epoch = -1
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._epoch_order(np.random.default_rng([self.seed, epoch]))
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]

    def _epoch_order(self, rng: np.random.Generator) -> NDArray[np.int64]:
        order = rng.permutation(self.num_examples)[: self.steps_per_epoch * self.batch_size]
        if self._lengths is None:
            return order
        group = np.arange(len(order)) // (self.GROUP * self.batch_size)
        order = order[np.lexsort((self._lengths[order], group))]
        batches = order.reshape(self.steps_per_epoch, self.batch_size)
        return rng.permutation(batches).reshape(-1)
