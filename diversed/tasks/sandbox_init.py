"""The first code inside a sandbox: closes the view on the machine and gives up all rights.

It runs as process 1 of a new PID namespace, in an interpreter that sees the standard library
alone; the rest of the project uses the text of this file, never its functions. It knows Linux, and
nothing of tasks and tests.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import struct

TYPE_CHECKING = False  # `typing` would take longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any, NoReturn

TIMED_OUT = 124
"""Exit status of process 1 where the program was still running at the end of its time."""

SLICE_MS = 20
NOBODY = 65534
WORK_FOLDER = "/tmp"  # noqa: S108  (in a file system of its own, which ends with the sandbox)
DEVICES = ("null", "zero", "full", "random", "urandom")

# Numbers of the kernel's interface: mount(2), mount_setattr(2), unshare(2), prctl(2), capset(2),
# seccomp(2).
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC = 2, 4, 8, 4096, 16384
MNT_DETACH = 2
ATTR_READ_ONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
CLONE_NEWUSER = 0x10000000
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
CAPABILITY_VERSION_3 = 0x20080522
SECCOMP_MODE_FILTER = 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050001  # the last one with EPERM
X32_BIT = 0x40000000
SOCKET_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: those that a network namespace holds

SYSTEM_CALLS = {
    # name: (x86_64, aarch64)
    "architecture": (0xC000003E, 0xC00000B7),
    "socket": (41, 198),
    "pivot_root": (155, 41),
    # Looking into other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    # Mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "unshare": (272, 97),
    "setns": (308, 268),
    # What else programs do without, and what the kernel has often had faults in
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
}
"""Numbers of system calls; all from `pivot_root` on are refused to programs."""

ARCHITECTURES = ("x86_64", "aarch64")

_libc = ctypes.CDLL(None, use_errno=True)


def enter(job: dict[str, Any], control_fd: int) -> None:
    """Build the file system, start a child without rights, and return in that child alone.

    What it has given up does not come back when it executes another program. It should do so, since
    `ctypes` is loaded here.

    Args:
        job: `visible` (paths to show, read-only; None where the mounts are made already),
            `disk_bytes` (of the work folder), `timeout_s` (wall time), `limits` (name of a
            resource limit -> number) and `change_user` (whether this process is the machine's
            root).
        control_fd: A pipe; all ends when its other end is closed.

    Raises:
        OSError: The kernel refused a step.
        RuntimeError: This is not the first process of a namespace, or its machine is unknown.
    """
    if os.getpid() != 1:
        raise RuntimeError(f"process {os.getpid()} is not the first of a PID namespace")
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        raise RuntimeError(f"{machine} is none of {', '.join(ARCHITECTURES)}")
    calls = {name: both[ARCHITECTURES.index(machine)] for name, both in SYSTEM_CALLS.items()}
    if job["visible"] is not None:
        _build_view(job["visible"], job["disk_bytes"], calls)
    os.chdir(WORK_FOLDER)
    child = os.fork()
    if child:
        _supervise(child, job["timeout_s"], control_fd)
    os.close(control_fd)
    os.setsid()
    _give_up_rights(change_user=job["change_user"])
    for name, number in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (number, number))
    _filter_system_calls(calls)


def _build_view(visible: list[str], disk_bytes: int, calls: dict[str, int]) -> None:
    """Enter a root that shows only `visible`, read-only, some devices and a work folder."""
    root = "/proc"  # any folder serves as mount point; this one never holds an interpreter
    _mount("root", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for path in visible:
        _show(path, root + path, calls)
    os.mkdir(f"{root}/dev")
    for name in DEVICES:
        os.close(os.open(f"{root}/dev/{name}", os.O_CREAT | os.O_WRONLY))
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, MS_BIND)
    options = f"mode=1777,size={disk_bytes},nr_inodes=4096"
    os.mkdir(root + WORK_FOLDER)
    _mount("work", root + WORK_FOLDER, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options)
    _restrict_mount(root, 0, calls)
    os.chdir(root)
    _check(_libc.syscall(calls["pivot_root"], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "umount")


def _show(path: str, target: str, calls: dict[str, int]) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    _mount(path, target, None, MS_BIND | MS_REC)
    _restrict_mount(target, AT_RECURSIVE, calls)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = _libc.mount(
        source.encode(),
        target.encode(),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _check(done, f"mount of {target}")


def _restrict_mount(target: str, flags: int, calls: dict[str, int]) -> None:
    attributes = (ctypes.c_uint64 * 4)(ATTR_READ_ONLY | ATTR_NOSUID | ATTR_NODEV, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    number = calls["mount_setattr"]
    done = _libc.syscall(number, AT_FDCWD, target.encode(), flags, attributes, size)
    _check(done, f"read-only mount of {target}")


def _give_up_rights(*, change_user: bool) -> None:
    """Become an unprivileged user without capabilities, in a user namespace of its own.

    The namespace maps no user; the kernel therefore allows no further ones inside it, and the
    limit on processes counts those of this sandbox alone.
    """
    if change_user:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _check(_libc.unshare(CLONE_NEWUSER), "unshare of users")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, none), "capset")
    _control_process(PR_SET_NO_NEW_PRIVS, 1, None)
    if os.getuid() == 0:
        raise RuntimeError("still root after all rights were given up")


def _filter_system_calls(calls: dict[str, int]) -> None:
    """Refuse the system calls of the table from now on, and sockets of other families."""
    names = list(calls)
    refused = [calls[name] for name in names[names.index("pivot_root") :]]
    # Operation, number, and where to go if it is so and if not; None is the next line.
    lines: list[tuple[int, int, str | None, str | None]] = [
        (LOAD, ARCHITECTURE_AT, None, None),
        (JUMP_IF_EQUAL, calls["architecture"], None, "kill"),
        (LOAD, NUMBER_AT, None, None),
        (JUMP_IF_AT_LEAST, X32_BIT, "refuse", None),
        *((JUMP_IF_EQUAL, number, "refuse", None) for number in refused),
        (JUMP_IF_EQUAL, calls["socket"], None, "allow"),
        (LOAD, FIRST_ARGUMENT_AT, None, None),
        *((JUMP_IF_EQUAL, family, "allow", None) for family in SOCKET_FAMILIES),
    ]
    ends = {"refuse": len(lines), "allow": len(lines) + 1, "kill": len(lines) + 2}
    program = b""
    for position, (operation, number, *targets) in enumerate(lines):
        jumps = [ends[target] - position - 1 if target else 0 for target in targets]
        program += struct.pack("HBBI", operation, *jumps, number)
    for result in (REFUSE, ALLOW, KILL):
        program += struct.pack("HBBI", RETURN, 0, 0, result)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HP", len(lines) + 3, ctypes.addressof(buffer))
    _control_process(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header))


def _control_process(option: int, value: int, pointer: Any) -> None:
    rest = (ctypes.c_ulong(0), ctypes.c_ulong(0))
    done = _libc.prctl(option, ctypes.c_ulong(value), pointer, *rest)
    _check(done, f"prctl {option}")


def _supervise(child: int, timeout_s: float, control_fd: int) -> NoReturn:
    """End process 1, and with it every process of the namespace, when it is time.

    That is when the child has ended, when its time is over, or when the other side hangs up. Time
    in which the whole machine stood still counts as one slice of waiting, however long it was.
    """
    events = select.poll()
    events.register(os.pidfd_open(child), select.POLLIN)
    events.register(control_fd, 0)  # a hang-up is reported unasked
    for _ in range(round(timeout_s * 1000 / SLICE_MS)):
        if events.poll(SLICE_MS):
            break
    pid, status = os.waitpid(child, os.WNOHANG)
    if not pid:
        os._exit(TIMED_OUT)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
