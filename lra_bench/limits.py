"""What this process may have of the machine: a container or a cluster's job has a part of its memory and processors.

Linux keeps such parts in control groups, of version 1 or 2, of which neither psutil nor torch knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import psutil

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has free, or less where a control group says so."""
    free = float(psutil.virtual_memory().available)
    for group in _groups("memory"):
        limit = min(_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
        held = min(_number(group / name) for name in ("memory.current", "memory.usage_in_bytes"))
        if max(limit, held) < math.inf:
            free = min(free, limit - held + _page_cache(group))
    return max(0, int(free))


def processor_share() -> float:
    """Of how many processors control groups leave this process the time; infinity without such a quota."""
    share = math.inf
    for group in _groups("cpu"):
        version_1 = "".join(_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        quota = (_text(group / "cpu.max") or version_1).split()
        if quota and quota[0] not in ("max", "-1"):
            share = min(share, int(quota[0]) / int(quota[1]))
    return share


def _groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups that this process is in, each inside the next; none outside Linux."""
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = GROUPS / controller if controllers else GROUPS
            group = root / path.lstrip("/")  # not there in a container, which sees its own group as the root
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _page_cache(group: Path) -> float:
    """Bytes of files that count as held but give way."""
    lines = map(str.split, _text(group / "memory.stat").splitlines())
    sizes = {words[0]: float(words[1]) for words in lines if len(words) == 2}
    # In version 1 only those with "total_" include the groups inside.
    return sum(sizes.get(f"total_{kind}_file", sizes.get(f"{kind}_file", 0.0)) for kind in ("inactive", "active"))


def _number(file: Path) -> float:
    """What a file of a control group says; infinity where it says nothing."""
    said = _text(file).strip()
    return math.inf if said in ("", "max") else float(said)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
