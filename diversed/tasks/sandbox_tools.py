"""The commands that make namespaces around an interpreter, and what is visible inside.

Knows bubblewrap and `unshare`; not what runs in the namespaces.
"""

import functools
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from diversed.tasks import sandbox_init

EXECUTABLES = {"bubblewrap": "bwrap", "unshare": "unshare"}
"""What can make the namespaces, best first, and its command."""

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/nix/store", "/gnu/store")


def is_installed(tool: str) -> bool:
    """Return whether a tool of `EXECUTABLES` is there; it need not work."""
    return shutil.which(EXECUTABLES[tool]) is not None


def interpreter_command() -> list[str]:
    """Return the command of a bare interpreter: the one behind a virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return [os.path.realpath(base), "-I", "-S"]


@functools.cache
def visible_paths() -> list[str]:
    """Return what a program may see: the system's libraries and the interpreter."""
    interpreter = interpreter_command()[0]
    prefixes = (sys.base_prefix, sys.base_exec_prefix, sysconfig.get_path("stdlib"))
    wanted = [*SYSTEM_FOLDERS, *map(os.path.realpath, prefixes), interpreter]
    visible: list[str] = []
    for path in wanted:
        is_covered = any(Path(path).is_relative_to(shown) for shown in visible)
        if os.path.lexists(path) and not is_covered:
            visible.append(path)
    return visible


def namespace_command(tool: str, disk_bytes: int) -> list[str]:
    """Return the command that runs another one as process 1 of new namespaces.

    Args:
        tool: One of `EXECUTABLES`. Inside `unshare`'s namespaces the mounts are still to be made.
        disk_bytes: Size of the work folder.
    """
    executable = shutil.which(EXECUTABLES[tool]) or EXECUTABLES[tool]
    is_root = os.geteuid() == 0
    if tool == "unshare":
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts"]
        users = [] if is_root else ["--user", "--map-root-user"]
        return [executable, *users, *spaces, "--fork", "--kill-child", "--"]
    spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    kept = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # to become nobody
    users = kept if is_root else ["--unshare-user"]
    mounts = ["--tmpfs", "/"]
    for path in visible_paths():
        for parent in [*Path(path).parents][-2::-1]:  # made by hand: bwrap's own are for it alone
            mounts += ["--dir", str(parent)]
        is_link = os.path.islink(path)
        mounts += ["--symlink", os.readlink(path), path] if is_link else ["--ro-bind", path, path]
    mounts += ["--dir", "/dev"]
    for name in sandbox_init.DEVICES:
        mounts += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    mounts += ["--perms", "1777", "--size", str(disk_bytes), "--tmpfs", sandbox_init.WORK_FOLDER]
    mounts += ["--remount-ro", "/"]
    return [executable, *users, *spaces, "--as-pid-1", "--die-with-parent", *mounts, "--"]
