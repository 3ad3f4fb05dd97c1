"""One file a variant; importing this package registers them all."""

from . import rfa, sdpa, softmax

__all__ = ["rfa", "sdpa", "softmax"]
