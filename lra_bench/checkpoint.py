"""Checkpoints: written atomically, read without executing code."""

from __future__ import annotations

import pickle
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import atomic_path

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def previous(path: Path) -> Path:
    """Where the checkpoint before the one at `path` lies."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` (tensors, numbers, strings, lists, dicts of them) to `path` atomically and keep the one before."""
    import torch

    with atomic_path(path) as temporary:
        try:
            with temporary.open("wb") as file:
                torch.save(state, file)
        except RuntimeError as error:
            # torch's writer has words of its own for a full disk.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        if path.exists():
            path.replace(previous(path))


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The newest state saved at `path` that is whole; None when there is none. Damage is told on stderr."""
    import torch

    for candidate in (path, previous(path)):
        try:
            # torch.load does not look at the checksums that torch.save writes.
            with zipfile.ZipFile(candidate) as archive:
                damaged = archive.testzip()
            if damaged is None:
                return torch.load(candidate, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            continue
        except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile):
            pass
        print(f"warning: checkpoint {candidate} is damaged and not used", file=sys.stderr)
    return None


def remove_checkpoint(path: Path) -> None:
    """Remove both checkpoints of a run."""
    for candidate in (path, previous(path)):
        candidate.unlink(missing_ok=True)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """States of torch's generators that drive dropout and the draws of random features in a run on `device`.

    On CUDA that of its own card and of no other, so that the run can go on where more or fewer of them are visible.
    """
    import torch

    card = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **card}


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Restore what `random_state` returned, to a device of the same type."""
    import torch

    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
