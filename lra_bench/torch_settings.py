"""Settings of torch that hold for the whole process, in which all models of a table are to be alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

backends: Any = torch.backends  # whose types are not all known


def _float32_precision() -> tuple[str, ...]:
    """torch's setting for matrix products in its older and its newer form: after the newer one the older may raise."""
    newer = (backends.fp32_precision, backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision)
    with suppress(RuntimeError):
        return torch.get_float32_matmul_precision(), *newer
    return "mixed", *newer


def _set_float32_precision(before: tuple[str, ...]) -> None:
    backends.fp32_precision = before[1]
    torch.set_float32_matmul_precision(before[0])
    # Now these say so themselves, where they may have said nothing before.
    backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision = before[2:]


# How each is read and how it is set to what was read.
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default_device": (torch.get_default_device, lambda _: torch.set_default_device(None)),  # as it is at first
    "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled),
    "float32_matmul_precision": (_float32_precision, _set_float32_precision),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "detect_anomaly": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "cudnn.benchmark": (lambda: backends.cudnn.benchmark, lambda value: setattr(backends.cudnn, "benchmark", value)),
    **{
        f"{kernel}_sdp": (
            getattr(backends.cuda, f"{kernel}_sdp_enabled"),
            getattr(backends.cuda, f"enable_{kernel}_sdp"),
        )
        for kernel in ("flash", "mem_efficient", "math", "cudnn")
    },
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
