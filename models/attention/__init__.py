"""One file a variant; importing this package registers them all."""

from . import linear, linformer, performer, reformer, rfa, sdpa, softmax

__all__ = ["linear", "linformer", "performer", "reformer", "rfa", "sdpa", "softmax"]
