"""A cell in a process of its own, so that a crash or an out-of-memory kill ends that cell alone."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from .limits import free_memory

# The memory trace warns of tensors older than itself. Huge pages, where kernel and C library have them, halve what it
# costs to touch memory for the first time: of a step whose memory is not kept, a third and more.
ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

# What a process that was told to stop has for saving; then it is killed.
GRACE_SECONDS = 60.0

Stopper = Literal["", "user", "time"]

# Whether this process was told to stop: see stop_on_sigterm.
_told_to_stop = threading.Event()


@dataclass(frozen=True)
class Ending:
    """code: of the process, negative for a signal; stopped: by whom it was told to end early, if it was."""

    code: int
    stopped: Stopper = ""

    @property
    def reason(self) -> tuple[Literal["oom", "failed", "interrupted"], str]:
        """Status and reason of a cell that left no record."""
        if self.stopped and self.code == -signal.SIGKILL:
            return "failed", f"hung: it did not stop within {GRACE_SECONDS:g} s of being told to, and was killed"
        if self.stopped == "user":
            return "interrupted", "stopped by the user before the first step"
        if self.stopped == "time":
            return "interrupted", "the time given was up before the first step"
        if self.code == -signal.SIGKILL:
            return "oom", "killed by SIGKILL, most likely for want of memory"
        return "failed", f"the process ended with code {self.code} and left no record"


class Process:
    """`python -m module` with `plan` on its standard input; what it prints goes to stderr or to the file `log`.

    It gets a session of its own, so that Ctrl-C reaches it once, from here, and not a second time while it saves.
    """

    def __init__(
        self, module: str, plan: str, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.stopped: Stopper = ""
        with log.open("ab") if log else nullcontext(2) as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**ENVIRONMENT, **os.environ, **(environment or {})},
            )
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError), self._popen.stdin as stdin:  # it may have died already
            stdin.write(plan.encode())

    def tell(self, stopped: Stopper) -> None:
        """Tell it to save and stop."""
        self.stopped = stopped
        self._popen.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for a process that was told to stop, no longer than GRACE_SECONDS or the next Ctrl-C."""
        try:
            self._popen.wait(GRACE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._popen.kill()
            self._popen.wait()

    def wait(self, seconds: float | None = None) -> Ending:
        """Wait for its end. seconds: after which it is told to stop."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            self.tell("time")
            self.end()
        return Ending(self._popen.returncode, self.stopped)


def run_module(module: str, plan: str) -> Ending:
    """A `Process` from its start to its end; Ctrl-C tells it to stop."""
    process = Process(module, plan)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.tell("user")
        process.end()
        return process.wait()


def run_forked(target: Callable[[str], None], plan: str, preload: Sequence[str]) -> Ending:
    """`target(plan)` in a process forked off one that has imported `preload` and done nothing else; see run_module.

    As fresh as a process of its own, but for the seconds that it takes to import torch. For Linux. CUDA does not
    survive a fork, so that nothing in `preload` may touch a card when imported.
    """
    for name, value in ENVIRONMENT.items():  # what is forked has the environment of the first call
        os.environ.setdefault(name, value)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    process = context.Process(target=_forked, args=(target, plan))
    process.start()
    stopped: Stopper = ""
    try:
        process.join()
    except KeyboardInterrupt:
        stopped = "user"
        process.terminate()
        process.join(GRACE_SECONDS)
        process.kill()
        process.join()
    assert process.exitcode is not None
    return Ending(process.exitcode, stopped)


def _forked(target: Callable[[str], None], plan: str) -> None:
    os.setsid()  # as a Process has it
    threading.Thread(target=_end_with_caller, daemon=True).start()
    target(plan)


def _end_with_caller() -> None:
    """Tell this process to stop when the one that asked for it is gone: it is not its parent, see end_with_parent."""
    caller = multiprocessing.parent_process()
    assert caller is not None
    caller.join()
    os.kill(os.getpid(), signal.SIGTERM)


def limit_address_space() -> None:
    """Let this process have the memory that is free now and no more, so that it fails before the machine does.

    On Linux; macOS refuses such limits, and there nothing happens.
    """
    if sys.platform != "linux":
        return
    in_use = psutil.Process().memory_info().vms
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = in_use + free_memory()
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one dies: no cell outlives a killed sweep.

    On Linux; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def stop_on_sigterm() -> None:
    """Make the first SIGTERM what Ctrl-C is, so that a cell that is told to stop saves first.

    Later ones are ignored: the kernel sends one for every thread of a killed parent, in the midst of the saving.
    """

    def stop(signum: int, frame: object) -> None:
        _told_to_stop.set()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Within it Ctrl-C and SIGTERM wait until what it yields is called, which then raises KeyboardInterrupt.

    So a loop can end between two steps, never in the middle of one. A SIGTERM before it counts as well: what is raised
    while Python runs the callback of a weak reference is printed and lost.
    """
    told = _told_to_stop.is_set()

    def note(signum: int, frame: object) -> None:
        nonlocal told
        told = True

    def check() -> None:
        if told:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are not for this one
        yield check
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
