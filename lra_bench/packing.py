"""What a record keeps of every test example, as text for JSON."""

import base64

import numpy as np
from numpy.typing import NDArray


def pack_bits(bits: NDArray[np.bool_]) -> str:
    """A bit per example: base64 of the bytes, the first example in the highest bit."""
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def unpack_bits(text: str, count: int) -> NDArray[np.bool_]:
    """The `count` bits that `pack_bits` packed. Raises ValueError for a text of another length."""
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(packed) != -(-count // 8):
        raise ValueError(f"{len(packed)} bytes are not the bits of {count} examples")
    return np.unpackbits(packed, count=count).astype(bool)


def pack_numbers(numbers: NDArray[np.float64]) -> str:
    """Numbers: base64 of float32, the lowest byte first."""
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def unpack_numbers(text: str, rows: int) -> NDArray[np.float64]:
    """The `[rows, ...]` that `pack_numbers` packed. Raises ValueError for a text of another shape, or of no numbers."""
    packed = base64.b64decode(text, validate=True)
    if rows < 1 or len(packed) % (4 * rows):
        raise ValueError(f"{len(packed)} bytes are not the numbers of {rows} items")
    numbers = np.frombuffer(packed, "<f4").astype(np.float64).reshape(rows, -1)
    if not np.isfinite(numbers).all():
        raise ValueError("not all of them are numbers")
    return numbers
