"""What memory there is: on a device, and on the machine around it."""

import os
from pathlib import Path

import torch

_MEMORY_INFO = Path("/proc/meminfo")
_LIMIT, _USED = (Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device; None where it cannot be asked."""
    if device.type == "cpu":
        return host_free_bytes()
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return None


def host_free_bytes() -> int | None:
    """Return what this process may still take of the machine's memory, swap left out.

    A container's limit counts too. Where only the size of the memory is known, it is that.
    """
    found = []
    if _MEMORY_INFO.is_file():
        lines = (line.split() for line in _MEMORY_INFO.read_text().splitlines())
        found += [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if _LIMIT.is_file() and _USED.is_file():
        limit, used = (path.read_text().strip() for path in (_LIMIT, _USED))
        if limit.isdigit():
            found.append(max(int(limit) - int(used), 0))
    return min(found, default=None)
