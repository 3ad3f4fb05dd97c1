"""Runs that share a device: while one is timed the others pause, each between two of its training steps.

Who prepares a run, imports, compiles and loads data, cannot pause: it is waited for, while those who train go on. So is
validating, which pauses them. Neither for longer than a minute.

Three locks of the operating system on files, which it gives up when their holder dies, however that happens. Who
prepares holds `preparing` with others, who trains `training`. Who measures takes `preparing` for itself, then closes
`gate`, so that nobody takes `training` any more, and then takes that.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

# A run that hangs is waited for no longer than this: by who measures, for the others to pause; by others, to go on.
STEP_SECONDS = 60.0
MEASURE_SECONDS = 300.0
POLL_SECONDS = 0.05
# How often who works looks whether somebody wants to measure.
LOOK_EVERY_SECONDS = 0.25


class AtWork:
    """Within it this process is one of those of this user and machine that use `device`.

    device: None takes no part. So must several processes with one run: at every step they wait for each other, and
    cannot wait for a third one at different steps.
    """

    def __init__(self, device: Literal["cpu", "cuda"] | None) -> None:
        self.device = device
        self._preparing: IO[bytes] | None = None
        self._gate: IO[bytes] | None = None
        self._training: IO[bytes] | None = None
        self._files = ExitStack()
        self._look_at = 0.0

    def __enter__(self) -> AtWork:
        if self.device is not None:
            # A full disk, one without locks, or a card that is not there.
            with suppress(OSError, RuntimeError, AssertionError):
                folder = Path(tempfile.gettempdir()) / f"lra-bench-{os.getuid()}"
                folder.mkdir(mode=0o700, exist_ok=True)
                device = _device_name(self.device)
                files = [folder / f"{device}.{name}" for name in ("preparing", "gate", "training")]
                opened = [self._files.enter_context(path.open("ab")) for path in files]
                _release(opened[0])  # fails where there are no locks
                self._preparing, self._gate, self._training = opened
        _lock(self._preparing, fcntl.LOCK_SH, MEASURE_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it the others pause."""
        _release(self._training)  # of two who want this each would wait for the other
        _release(self._preparing)
        _lock(self._preparing, fcntl.LOCK_EX, STEP_SECONDS)
        _lock(self._gate, fcntl.LOCK_EX, MEASURE_SECONDS)
        _lock(self._training, fcntl.LOCK_EX, STEP_SECONDS)
        try:
            yield
        finally:
            _release(self._training)
            _release(self._gate)
            _try(self._preparing, fcntl.LOCK_SH)

    def give_way(self, check: Callable[[], None]) -> None:
        """At the end of a training step: who wants to be alone is so first. check: called while waiting, may raise."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_EVERY_SECONDS
        if not _try(self._gate, fcntl.LOCK_SH):
            if self.device == "cuda":  # what was launched is still at work
                import torch

                torch.cuda.synchronize()
            _release(self._training)
            _release(self._preparing)
            _lock(self._gate, fcntl.LOCK_SH, MEASURE_SECONDS, check)
        _try(self._training, fcntl.LOCK_SH)
        _release(self._preparing)
        _release(self._gate)


NOT_SHARED = AtWork(None)


def _device_name(device: Literal["cpu", "cuda"]) -> str:
    if device == "cpu":  # known without torch, whose import takes the processor a while
        return device
    import torch

    return f"gpu-{torch.cuda.get_device_properties().uuid}"


def _try(file: IO[bytes] | None, mode: int) -> bool:
    """Whether the lock is to be had at once; no file is always free."""
    if file is None:
        return True
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(file: IO[bytes] | None, mode: int, seconds: float, check: Callable[[], None] = lambda: None) -> None:
    """Wait for the lock, but no longer than so many seconds."""
    until = time.monotonic() + seconds
    while not _try(file, mode) and time.monotonic() < until:
        check()
        time.sleep(POLL_SECONDS)


def _release(file: IO[bytes] | None) -> None:
    if file is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
