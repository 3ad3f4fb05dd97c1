"""Packed storage: all sequences end to end in one array, so that no sequence costs a Python object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Token sequences as views into one array: sequence i is `tokens[starts[i] : starts[i] + lengths[i]]`.

    Selecting and truncating change the views and share the tokens, so a validation split or a shorter maximum
    length costs no copy.

    tokens: `[total]` int16 (int32 for vocabularies over 32,767), 0 is kept for padding;
    starts, lengths: `[num_sequences]` int64.
    """

    tokens: NDArray[np.integer]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def from_offsets(cls, tokens: NDArray[np.integer], offsets: NDArray[np.integer]) -> PackedSequences:
        """Sequences lying without gaps: sequence i ends where i + 1 starts. offsets: `[num_sequences + 1]`."""
        ends = offsets.astype(np.int64)
        return cls(tokens, ends[:-1], ends[1:] - ends[:-1])

    @classmethod
    def from_list(cls, sequences: Iterable[Iterable[int]]) -> PackedSequences:
        """Pack sequences given one by one; for tests and small sets."""
        arrays = [np.asarray(list(s), dtype=np.int64) for s in sequences]
        tokens = np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
        dtype = np.int16 if tokens.size == 0 or tokens.max() <= np.iinfo(np.int16).max else np.int32
        offsets = np.cumsum([0, *(len(a) for a in arrays)])
        return cls.from_offsets(tokens.astype(dtype), offsets)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        start = self.starts[index]
        return self.tokens[start : start + self.lengths[index]]

    def select(self, indices: NDArray[np.integer]) -> PackedSequences:
        """The sequences at `indices`, in that order."""
        return PackedSequences(self.tokens, self.starts[indices], self.lengths[indices])

    def truncate(self, max_len: int) -> PackedSequences:
        """Keep at most the first `max_len` tokens of each sequence."""
        return PackedSequences(self.tokens, self.starts, np.minimum(self.lengths, max_len))


def pack_bytes(texts: list[bytes]) -> PackedSequences:
    """Byte tokens, byte + 1, of texts given one by one."""
    joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
    return PackedSequences.from_offsets(joined.astype(np.int16) + 1, np.cumsum([0, *map(len, texts)]))


def unpack_bytes(sequences: PackedSequences) -> list[bytes]:
    """The texts that `pack_bytes` packed."""
    return [(sequences[i] - 1).astype(np.uint8).tobytes() for i in range(len(sequences))]
