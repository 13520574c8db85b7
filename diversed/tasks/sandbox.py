"""Runs code of unknown origin in namespaces of its own, with limits on all it can use up.

One program is one process tree in PID, mount, user, network, IPC and UTS namespaces of its own.
It sees the interpreter and the system's libraries, read-only, and an empty work folder in memory;
no `/proc`, no home, no network, no variable of the environment, no input. It runs as nobody,
without capabilities, under a filter of system calls, within limits on CPU and wall time, memory,
processes, files and output. When its process 1 ends, the kernel ends all that is left, and the work
folder is gone.

The namespaces are made by bubblewrap where it is installed and works, else by `unshare`. Where
neither works, nothing is run: `SandboxUnavailableError`. `sandbox_init` is what happens inside.

What this does not stop: faults of the kernel and of the interpreter (system calls that programs can
do without are filtered, all others are not); slowing down the machine until the time is up, with
every allowed process; reading what lies in the interpreter's and the system's library folders.
"""

import functools
import logging
import marshal
import math
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import CodeType
from typing import Any

from diversed.tasks import sandbox_init, sandbox_judge
from diversed.tasks.sandbox_tools import (
    EXECUTABLES,
    interpreter_command,
    is_installed,
    namespace_command,
    visible_paths,
)
from diversed.tasks.sandbox_watch import watch

logger = logging.getLogger(__name__)

TOOLS = tuple(EXECUTABLES)
"""What can make the namespaces, best first."""

START_S = 60.0
"""Seconds that a sandbox may take to start and to end, beside the program's own time."""

_BOOTSTRAP = """
import marshal, os, sys
verdict_fd, control_fd = map(int, sys.argv[2:])
init, judge, job = marshal.loads(os.pread(0, os.fstat(0).st_size, 0))
exec(init, scope := {"__name__": "sandbox_init"})
scope["enter"](job, control_fd)
flags = sys.orig_argv[1 : sys.orig_argv.index("-c") + 1]
os.execv(sys.executable, [sys.executable, *flags, sys.argv[1], str(verdict_fd)])
"""
_BOOTSTRAP_JUDGE = """
import marshal, os, sys
verdict_fd = int(sys.argv[1])
init, judge, job = marshal.loads(os.pread(0, os.fstat(0).st_size, 0))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
exec(judge, scope := {"__name__": "sandbox_judge"})
scope["judge"](job, verdict_fd)
"""
_PROBE = """
import os, socket
assert os.getppid() == 1, "it shares the process numbers of the machine"
assert os.getuid() and os.geteuid(), "it is root"
assert [name for _, name in socket.if_nameindex()] == ["lo"], "it sees the network"
assert not os.path.exists("/proc/1"), "it sees processes"
assert not os.access("/", os.W_OK), "it can write to the root folder"
with open("file", "w") as file:
    file.write("text")
"""


class SandboxUnavailableError(OSError):
    """This machine cannot isolate generated code, so none is run."""


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        timeout_s: Wall time, in seconds; CPU time of a process is limited to it, rounded up.
        memory_mb: Address space of each process, in MiB; all together may use twice as much.
        num_processes: Processes and threads at a time; two are the judge's.
        file_mb: Size of a file, in MiB; all files together may have four times as much.
        output_kb: What may be printed, in KiB.
    """

    timeout_s: float = 10.0
    memory_mb: int = 1024
    num_processes: int = 16
    file_mb: int = 16
    output_kb: int = 1024

    def __post_init__(self) -> None:
        """Raise ValueError, naming the setting, where a limit is out of range."""
        least = {"timeout_s": 0.1, "memory_mb": 256, "num_processes": 4, "file_mb": 1}
        for name, bound in {**least, "output_kb": 1}.items():
            value = getattr(self, name)
            if not bound <= value < math.inf:
                raise ValueError(f"data.{name}={value}: must be at least {bound}")

    @property
    def disk_bytes(self) -> int:
        """Size of the work folder."""
        return self.file_mb << 22

    def resources(self) -> dict[str, int]:
        """Return names of resource limits and their numbers."""
        return {
            "RLIMIT_CPU": math.ceil(self.timeout_s) + 1,
            "RLIMIT_AS": self.memory_mb << 20,
            "RLIMIT_FSIZE": self.file_mb << 20,
            "RLIMIT_NOFILE": 128,
            "RLIMIT_NPROC": self.num_processes,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 0,
        }


@dataclass(frozen=True)
class Report:
    """How a program ended.

    Attributes:
        is_ready: Whether it was begun at all; if not, the sandbox failed, and `log` says why.
        verdict: The line that followed, of the judge or of a forger; it may be empty.
        exit_code: Of the process: 0, a code, `sandbox_init.TIMED_OUT`, or 128 + a signal.
        overuse: "output" or "memory" where it was ended because it used too much of it.
        log: End of what it printed.
    """

    is_ready: bool
    verdict: bytes
    exit_code: int
    overuse: str | None
    log: str


class Sandbox:
    """Runs programs, each in a sandbox of its own; safe to use from several threads.

    Attributes:
        tool: What makes the namespaces.
        limits: What each program may use.
    """

    def __init__(self, limits: Limits, tool: str | None = None) -> None:
        """Choose what makes the namespaces.

        Args:
            limits: What each program may use.
            tool: One of `TOOLS`; None for the first that works here.

        Raises:
            SandboxUnavailableError: None works.
        """
        self.limits = limits
        self.tool = find_tool() if tool is None else tool

    def run(self, job: Mapping[str, Any]) -> Report:
        """Run one program to its end, whatever that is; nothing of it is left then.

        Args:
            job: What `sandbox_judge.judge` reads.

        Returns:
            How it ended.

        Raises:
            OSError: The machine is out of processes, memory or file descriptors.
        """
        setup = {
            "visible": visible_paths() if self.tool == "unshare" else None,
            "disk_bytes": self.limits.disk_bytes,
            "timeout_s": self.limits.timeout_s,
            "limits": self.limits.resources(),
            "change_user": os.geteuid() == 0,
        }
        command = namespace_command(self.tool, self.limits.disk_bytes)
        with ExitStack() as stack:
            verdict, its_verdict = _pipe(stack)
            output, its_output = _pipe(stack)
            its_control, control = _pipe(stack)
            text = stack.enter_context(os.fdopen(os.memfd_create("program"), "wb"))
            text.write(marshal.dumps((*_inner_code(), {**job, **setup})))
            text.flush()
            inherited = (its_verdict.fileno(), its_control.fileno())
            process = subprocess.Popen(  # noqa: S603 (no shell; every word of it is ours)
                [
                    *command,
                    *interpreter_command(),
                    "-c",
                    _BOOTSTRAP,
                    _BOOTSTRAP_JUDGE,
                    *map(str, inherited),
                ],
                stdin=text,
                stdout=its_output,
                stderr=its_output,
                pass_fds=inherited,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"},
                cwd="/",
                start_new_session=True,
            )
            try:
                for pipe in (its_verdict, its_output, its_control):
                    pipe.close()
                streams = watch(
                    verdict,
                    output,
                    control,
                    process.pid,
                    max_s=self.limits.timeout_s + START_S,
                    max_bytes=self.limits.output_kb << 10,
                    max_memory_bytes=self.limits.memory_mb << 21,
                )
                control.close()
                exit_code = process.wait(START_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        is_ready = streams.verdict.startswith(sandbox_judge.READY)
        return Report(
            is_ready=is_ready,
            verdict=streams.verdict.removeprefix(sandbox_judge.READY),
            exit_code=exit_code,
            overuse=streams.overuse,
            log=streams.log.decode(errors="replace"),
        )


@functools.cache
def find_tool() -> str:
    """Return the first of `TOOLS` that isolates a program on this machine.

    Raises:
        SandboxUnavailableError: None does; the message says why not.
    """
    faults = []
    for tool in TOOLS:
        fault = fault_of(tool)
        if fault is None:
            logger.info("generated code is isolated with %s", tool)
            return tool
        faults.append(f"{tool}: {fault}")
    raise SandboxUnavailableError(
        "generated code runs only in namespaces of its own, and none can be made here "
        f"({'; '.join(faults)}). Install bubblewrap, or allow user namespaces; a container needs "
        "the right to make them, such as docker's --cap-add SYS_ADMIN"
    )


@functools.cache
def fault_of(tool: str) -> str | None:
    """Return why a tool of `TOOLS` cannot isolate programs here; None where it can.

    A harmless program runs and looks around.
    """
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if not is_installed(tool):
        return "not installed"
    word = secrets.token_hex()
    job = {"word": word, "solution": _PROBE, "tests": [], "imports": [], "names": []}
    try:
        report = Sandbox(Limits(), tool).run(job)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if report.is_ready and report.verdict == f"{word} passed\n".encode():
        return None
    lines = report.log.strip().splitlines()
    return lines[-1] if lines else f"it ended with {report.exit_code}"


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the reading and the writing end of a pipe; `stack` closes what is still open."""
    reading, writing = os.pipe()
    return stack.enter_context(FileIO(reading, "rb")), stack.enter_context(FileIO(writing, "wb"))


@functools.cache
def _inner_code() -> tuple[CodeType, CodeType]:
    """Return the code of what runs inside: `sandbox_init` and `sandbox_judge`."""
    init, judge = (Path(str(module.__file__)) for module in (sandbox_init, sandbox_judge))
    return (
        compile(init.read_text(encoding="utf-8"), init.name, "exec"),
        compile(judge.read_text(encoding="utf-8"), judge.name, "exec"),
    )
