"""What a run ran on and which code it was."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from . import ROOT
from .limits import processor_share

if TYPE_CHECKING:
    import torch

# nvidia-smi tells of the time before it is asked, a second of it or less.
UTILIZATION_SECONDS = 1.0


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

    @property
    def label(self) -> str:
        """What step times may be compared on: a card, or a processor with so many threads."""
        return f"{self.device}, {self._threads}" if self.driver is None else self.device

    @property
    def runtime(self) -> str:
        """Threads and version of torch, in words."""
        return f"{self._threads} of torch {self.torch}"

    @property
    def _threads(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads != 1)}"

    def of_processes(self, count: int, compiled: bool) -> Machine:
        """The same of a run by `count` processes, each with a device and threads of its own."""
        device = self.device if count == 1 else f"{count} x {self.device}"
        return self.model_copy(update={"device": device, "compiled": compiled})


class Code(BaseModel, extra="forbid", frozen=True):
    """The checkout. commit: its hash, or "unknown" outside git; dirty: whether tracked files had been changed, or
    steps before the last pause were made at another commit.

    plugin: SHA-256 of `plugin_source`, first 12 digits, where it is not empty.
    """

    commit: str
    dirty: bool
    plugin: str = ""

    @property
    def short(self) -> str:
        """For a table: the first digits, and whether there were changes."""
        return self.commit[:12] + ("-dirty" if self.dirty else "")


def cpu_name() -> str:
    """The processor's own name, as Linux tells it, else what platform says, and the vector instructions torch uses.

    Without these, virtual machines on processors of different generations bear one name and would share a table.
    """
    from torch.backends.cpu import get_cpu_capability

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(named, platform.processor() or platform.machine())
    instructions = get_cpu_capability()
    return name if instructions == "DEFAULT" else f"{name} ({instructions})"


def default_threads() -> int:
    """Torch's own number of threads, or fewer where a control group leaves the time of fewer processors.

    More of them would be stopped in turn, each while the others wait for it.
    """
    import torch

    return max(1, int(min(torch.get_num_threads(), processor_share())))


def describe_machine(device: str, precision: str, threads: int | None = None) -> Machine:
    """The machine of a run on `device` ("cpu" or "cuda"). threads: by default `default_threads`."""
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
        threads=threads or default_threads(),
        torch=torch.__version__,
        python=platform.python_version(),
        precision=precision,
        compiled=False,
    )


def has_bf16() -> bool:
    """Whether the card multiplies bf16 itself: Ampere and later, older ones imitate it and are slow.

    Where there is no card to ask, the run is for another machine, of which no worse is assumed.
    """
    import torch

    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)


def cuda_devices() -> tuple[str, ...]:
    """The cards that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return tuple(named) or tuple(str(i) for i in range(torch.cuda.device_count()))


def card_busy_percent(device: torch.device) -> float | None:
    """Of a second in which this process leaves the card alone, how long it is at work for others.

    None where nvidia-smi is missing or does not tell, as of a part of a card (MIG).
    """
    import torch

    torch.cuda.synchronize(device)
    time.sleep(UTILIZATION_SECONDS)
    card = f"--id=GPU-{torch.cuda.get_device_properties(device).uuid}"
    told = _output(["nvidia-smi", card, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"])
    return float(told) if told and told.isdecimal() else None


def describe_code(plugin_source: str = "") -> Code:
    """Commit and state of the checkout that this file lies in, and the plugin with this text."""
    # As we run its code already, git may trust the checkout whoever owns it, as in a container.
    git = ["git", "-c", "safe.directory=*", "-C", str(ROOT)]
    # A copy without a repository of its own may lie in somebody else's, whose commit says nothing of us.
    tracked = _output([*git, "ls-files", "--error-unmatch", "lra_bench/machine.py"])
    commit = _output([*git, "rev-parse", "HEAD"]) if tracked else None
    changes = _output([*git, "status", "--porcelain", "--untracked-files=no", "--", "."]) if commit else None
    plugin = hashlib.sha256(plugin_source.encode()).hexdigest()[:12] if plugin_source else ""
    return Code(commit=commit or "unknown", dirty=bool(changes), plugin=plugin)


def _output(command: list[str]) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
