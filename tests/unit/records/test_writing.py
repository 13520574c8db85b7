"""Files and folders appear whole or not at all, and what keeps them from it is named."""

import errno
import os
import resource
import signal
from pathlib import Path

import pytest

from diversed.records import store
from diversed.records.store import WriteError, replace_file, replace_folder, write_json


def write_half(path: Path) -> None:
    """Write something, then find the disk full."""
    (path / "file.txt" if path.is_dir() else path).write_text("half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_two(text: str):
    """Return a writer of a folder with two files, one of them in a folder of its own."""

    def write(folder: Path) -> None:
        (folder / "inner").mkdir()
        (folder / "a.txt").write_text(text)
        (folder / "inner" / "b.txt").write_text(text)

    return write


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("old", [None, "old"])
def test_a_full_disk_leaves_a_file_as_it_was(tmp_path, old):
    path = tmp_path / "file.txt"
    if old:
        path.write_text(old)
    with pytest.raises(WriteError) as caught:
        replace_file(path, write_half)
    assert str(caught.value) == f"{path} cannot be written: No space left on device"
    assert contents(tmp_path) == ({"file.txt": old} if old else {})


@pytest.mark.parametrize("old", [None, "old"])
def test_a_full_disk_leaves_a_folder_as_it_was(tmp_path, old):
    folder = tmp_path / "head"
    if old:
        folder.mkdir()
        (folder / "file.txt").write_text(old)
    with pytest.raises(WriteError, match=r"head cannot be written: No space left on device$"):
        replace_folder(folder, write_half)
    assert contents(tmp_path) == ({"head/file.txt": old} if old else {})


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("replace", [replace_file, replace_folder])
def test_other_errors_stay_what_they_are_and_leave_nothing(tmp_path, replace, error):
    def fail(path: Path) -> None:
        raise error

    with pytest.raises(type(error)):
        replace(tmp_path / "new.txt", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_system_leaves_a_file_as_it_was(tmp_path):
    """The system cuts the write short; nothing is simulated."""
    path = tmp_path / "file.json"
    write_json(path, {"a": 1})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(WriteError, match=r"file\.json cannot be written: File too large"):
            write_json(path, {"a": "x" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["file.json"]


def test_a_folder_is_replaced_whole(tmp_path):
    folder = tmp_path / "runs" / "head"
    replace_folder(folder, write_two("one"))
    assert contents(folder) == {"a.txt": "one", "inner/b.txt": "one"}
    (folder / "c.txt").write_text("of before")
    replace_folder(folder, write_two("two"))
    assert contents(folder) == {"a.txt": "two", "inner/b.txt": "two"}
    assert [path.name for path in folder.parent.iterdir()] == ["head"]


def test_what_a_kill_left_is_cleared_away(tmp_path):
    for name in (".head.partial", ".head.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rest.txt").write_text("rest")
    (tmp_path / ".file.txt.partial").write_text("a longer rest")
    replace_folder(tmp_path / "head", write_two("one"))
    replace_file(tmp_path / "file.txt", lambda path: path.write_text("new"))
    assert contents(tmp_path) == {
        "head/a.txt": "one",
        "head/inner/b.txt": "one",
        "file.txt": "new",
    }


def test_content_is_on_disk_before_its_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    """Without the last step a power cut could bring the old file back after its successors."""
    log = []
    real = {"fsync": os.fsync, "replace": Path.replace}

    def fsync(descriptor):
        log.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        real["fsync"](descriptor)

    def replace(path, target):
        log.append(f"rename {path.name}")
        return real["replace"](path, target)

    monkeypatch.setattr(store.os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    replace_file(tmp_path / "file.txt", lambda path: path.write_text("new"))
    part = ".file.txt.partial"
    assert log == [f"fsync {part}", f"rename {part}", f"fsync {tmp_path.name}"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WriteError, match=r"manifest\.json cannot be written: .*exists"):
        write_json(tmp_path / "file" / "manifest.json", {})
    assert contents(tmp_path) == {"file": "mine"}
