"""Settings of torch that hold for the whole process, in which all models of a table are to be alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.backends import cuda, cudnn

SDP_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
# How each is read and how it is set to what was read.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, lambda _: torch.set_default_device(None)),  # as it is at first
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "detect_anomaly": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "cudnn.benchmark": (lambda: cudnn.benchmark, lambda value: setattr(cudnn, "benchmark", value)),
    **{f"{k}_sdp": (getattr(cuda, f"{k}_sdp_enabled"), getattr(cuda, f"enable_{k}_sdp")) for k in SDP_KERNELS},
}


def read_settings() -> dict[str, Any]:
    """The settings as they are now, by torch's names for them."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def restore_settings(before: dict[str, Any]) -> list[str]:
    """Set what has changed since `before` was read back, and name it."""
    changed = [name for name, value in read_settings().items() if value != before[name]]
    for name in changed:
        _SETTINGS[name][1](before[name])
    return changed
