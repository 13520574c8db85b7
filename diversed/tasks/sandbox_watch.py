"""Watches a running sandbox from outside: what it says, and how much it uses."""

import os
import resource
import selectors
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

MAX_VERDICT_BYTES = 1 << 12
LOG_BYTES = 2000

LOOK_S = 0.05
"""Seconds between two looks at the memory of all processes of a program."""


@dataclass
class Streams:
    """What came out of a sandbox.

    Attributes:
        verdict: Beginning of what the judge, or a forger, wrote.
        log: End of what was printed.
        num_bytes: Of both.
        overuse: "output" or "memory" where it used too much of it.
    """

    verdict: bytes = b""
    log: bytes = b""
    num_bytes: int = 0
    overuse: str | None = None


def watch(
    verdict: FileIO,
    output: FileIO,
    control: FileIO,
    pid: int,
    *,
    max_s: float,
    max_bytes: int,
    max_memory_bytes: int,
) -> Streams:
    """Read both pipes of a sandbox until all is over.

    Args:
        verdict: What the judge writes to.
        output: What the program prints to.
        control: Is closed, which ends the sandbox, where it uses too much.
        pid: Of the sandbox's outermost process.
        max_s: When to give up, in seconds from now.
        max_bytes: What may come out of both pipes.
        max_memory_bytes: What all processes together may have in memory.

    Returns:
        What came.
    """
    streams = Streams()
    deadline = time.monotonic() + max_s
    next_look = time.monotonic() + LOOK_S
    with selectors.DefaultSelector() as selector:
        selector.register(verdict, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(LOOK_S):
                data = os.read(key.fd, 1 << 16)
                streams.num_bytes += len(data)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fd == verdict.fileno():
                    streams.verdict = (streams.verdict + data)[:MAX_VERDICT_BYTES]
                else:
                    streams.log = (streams.log + data)[-LOG_BYTES:]
            if streams.num_bytes > max_bytes:
                streams.overuse = streams.overuse or "output"
            elif time.monotonic() > next_look:
                next_look = time.monotonic() + LOOK_S
                if resident_bytes(pid) > max_memory_bytes:
                    streams.overuse = streams.overuse or "memory"
            if streams.overuse is not None:
                control.close()
    return streams


def resident_bytes(pid: int) -> int:
    """Return the memory of a process and all that come from it; what they share counts for each."""
    try:
        num_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        threads = Path(f"/proc/{pid}/task").iterdir()  # each has the children that it has made
        children = " ".join((thread / "children").read_text() for thread in threads).split()
    except (OSError, IndexError):  # it has ended
        return 0
    return num_pages * resource.getpagesize() + sum(
        resident_bytes(int(child)) for child in children
    )
