"""Where data comes from: a local folder, the hub or an embedded generator; and the cache in front of them."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from .dataset import DataError, Dataset
from .files import atomic_path

CACHE_FORMAT = 1
HUB_TIMEOUT_S = 4.0


def cache_dir() -> Path:
    """Folder of prepared data: $LRA_BENCH_CACHE, else `.cache` in the checkout."""
    return Path(os.environ.get("LRA_BENCH_CACHE") or Path(__file__).resolve().parent.parent / ".cache")


def cache_path(task: str, key: dict[str, object]) -> Path:
    """File that caches the data of `task` described by `key`."""
    digest = hashlib.sha256(json.dumps({"format": CACHE_FORMAT, **key}, sort_keys=True).encode()).hexdigest()
    return cache_dir() / f"{task}-{digest[:16]}.safetensors"


def cached(task: str, key: dict[str, object], build: Callable[[], Dataset]) -> tuple[Dataset, str]:
    """The data set described by `key` and its fingerprint: read from the cache, or built and stored.

    Processes that need the same data at once build it once. A stored file is checked against its fingerprint
    every time it is read; one that is damaged is named on stderr and built anew.
    """
    path = cache_path(task, key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            stored = _read(path)
            if stored is None:
                data = _built(build)
                stored = data, data.fingerprint()
                _write(path, *stored)
    except OSError as error:
        raise DataError(
            f"cannot write the cache {path.parent}: {error.strerror or error};"
            " set LRA_BENCH_CACHE to a folder with room"
        ) from None
    return stored


def _built(build: Callable[[], Dataset]) -> Dataset:
    """The result of `build`; what it cannot read is not to be taken for a fault of the cache."""
    try:
        return build()
    except OSError as error:
        raise DataError(f"cannot read {error.filename or 'the data'}: {error.strerror or error}") from None


def check_cached(path: Path) -> str:
    """What is wrong with a stored data set, in one line; empty when it is whole."""
    stored = _open(path)
    return stored if isinstance(stored, str) else ""


def _read(path: Path) -> tuple[Dataset, str] | None:
    if not path.exists():
        return None
    stored = _open(path)
    if isinstance(stored, str):
        print(f"warning: cached data {path} is damaged ({stored}); preparing it anew", file=sys.stderr)
        return None
    return stored


def _open(path: Path) -> tuple[Dataset, str] | str:
    """A stored data set and its fingerprint, or what is wrong with it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata()
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        data = Dataset.from_arrays(metadata["dataset"], arrays)
        fingerprint = data.fingerprint()
        if metadata["format"] != str(CACHE_FORMAT):
            return f"its format is {metadata['format']}, not {CACHE_FORMAT}"
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        return str(error).splitlines()[0]
    if fingerprint != metadata["fingerprint"]:
        return "its content does not match its fingerprint"
    return data, fingerprint


def _write(path: Path, data: Dataset, fingerprint: str) -> None:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in data.arrays().items()}
    metadata = {"format": str(CACHE_FORMAT), "dataset": data.name, "fingerprint": fingerprint}
    with atomic_path(path) as temporary:
        try:
            save_file(arrays, temporary, metadata=metadata)
        except SafetensorError as error:  # a full disk, which is no OSError there
            raise OSError(str(error)) from None


def file_key(files: list[Path]) -> list[list[object]]:
    """What tells one state of local files from another: path, size and time of change."""
    stats = [(file, file.stat()) for file in files]
    return [[str(file.resolve()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def hub_answers(repo: str, revision: str, timeout_s: float = HUB_TIMEOUT_S) -> bool:
    """Whether the hub ($HF_ENDPOINT, by default huggingface.co) knows `repo` and says so within `timeout_s`."""
    answered = threading.Event()

    def ask() -> None:
        from huggingface_hub import HfApi

        try:
            HfApi().dataset_info(repo, revision=revision, timeout=timeout_s)
        except Exception:  # whatever the reason, the hub is of no use now
            return
        answered.set()

    # In a thread of its own, because looking up the host's name ignores every timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answered.is_set()
