"""What a run ran on and which code it was."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

from pydantic import BaseModel

from . import ROOT


class Machine(BaseModel, extra="forbid", frozen=True):
    """Hardware and versions. device: the processor's or the card's own name; driver: CUDA only."""

    device: str
    driver: str | None
    cpu: str
    threads: int
    torch: str
    python: str
    precision: str
    compiled: bool


class Code(BaseModel, extra="forbid", frozen=True):
    """The checkout. commit: its hash, or "unknown" outside git; dirty: whether tracked files had been changed."""

    commit: str
    dirty: bool

    @property
    def short(self) -> str:
        """For a table: the first digits, and whether there were changes."""
        return self.commit[:12] + ("-dirty" if self.dirty else "")


def cpu_name() -> str:
    """The processor's own name, as Linux tells it, else what platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def describe_machine(device: str, precision: str) -> Machine:
    """The machine of a run on `device` ("cpu" or "cuda")."""
    import torch

    driver = None
    name = cpu_name()
    if device == "cuda":
        name = torch.cuda.get_device_name()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = (_output(query) or "unknown").splitlines()[0]
    return Machine(
        device=name,
        driver=driver,
        cpu=cpu_name(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        precision=precision,
        compiled=False,
    )


def describe_code() -> Code:
    """Commit and state of the checkout that this file lies in."""
    commit = _output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    changes = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return Code(commit=commit or "unknown", dirty=bool(changes))


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
