"""Checkpoints: written atomically, read without executing code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from tasks.files import atomic_path


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, lists and dicts of them) to `path` atomically."""
    with atomic_path(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state saved at `path`; None when there is none or when the file is damaged."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        return None
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile):
        return None


def random_state() -> dict[str, Any]:
    """States of torch's generators, which drive dropout and the draws of random features."""
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
