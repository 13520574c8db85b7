"""Reads what W&B keeps of an offline run: protocol buffers in the format of LevelDB's log."""

import json
import struct
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER_SIZE = 7
BLOCK_SIZE = 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class OfflineRun:
    """An offline run.

    Attributes:
        id: Its id.
        name: Its display name.
        config: What was logged as config.
        history: Rows of `log`, in order.
        summary: Last value of everything.
        artifacts: (name, type, aliases, paths of files) of what was logged, tables among them.
        exit_code: None where the run has no end.
    """

    id: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[tuple[str, str, list[str], list[Path]]] = field(default_factory=list)
    exit_code: int | None = None

    def curve(self, name: str) -> dict[int, float]:
        """Return step -> value."""
        return {row["_step"]: row[name] for row in self.history if name in row}


def offline_folders(folder: Path) -> list[Path]:
    """Return the folders of the offline runs in a run's folder, in order of time."""
    return sorted(folder.glob("wandb/offline-run-*"))


def read_offline_run(folder: Path, patience_s: float = 20) -> OfflineRun:
    """Return what W&B's own folder of an offline run holds.

    Its service closes the file a moment after the run: the end of the run is waited for.
    """
    (file,) = folder.glob("*.wandb")
    waits_until = time.monotonic() + patience_s
    run = parsed(file.read_bytes())
    while run.exit_code is None and time.monotonic() < waits_until:
        time.sleep(0.05)
        run = parsed(file.read_bytes())
    return run


def parsed(data: bytes) -> OfflineRun:
    """Return what the whole records of a file say."""
    run = OfflineRun()
    for content in records(data):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.id, run.name = record.run.run_id, record.run.display_name
            set_items(run.config, record.run.config.update)
        elif kind == "config":
            set_items(run.config, record.config.update)
        elif kind == "history":
            row: dict[str, Any] = {}
            set_items(row, record.history.item)
            run.history.append({"_step": record.history.step.num} | row)
        elif kind == "summary":
            set_items(run.summary, record.summary.update)
        elif kind == "artifact":
            artifact = record.artifact
            paths = [Path(entry.local_path) for entry in artifact.manifest.contents]
            run.artifacts.append((artifact.name, artifact.type, list(artifact.aliases), paths))
        elif kind == "exit":
            run.exit_code = record.exit.exit_code
    return run


def set_items(target, items) -> None:
    """Set values by their keys; a key may be a path."""
    for item in items:
        *path, last = list(item.nested_key) or [item.key]
        place = target
        for key in path:
            place = place.setdefault(key, {})
        place[last] = json.loads(item.value_json)


def records(data: bytes):
    """Yield the records of a file, as far as they are whole."""
    assert data[:4] == b":W&B"
    position, parts = HEADER_SIZE, []
    while position + HEADER_SIZE <= len(data):
        left = BLOCK_SIZE - position % BLOCK_SIZE
        if left < HEADER_SIZE:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[position : position + HEADER_SIZE])
        content = data[position + HEADER_SIZE : position + HEADER_SIZE + length]
        if len(content) < length:
            return
        assert checksum == zlib.crc32(bytes([kind]) + content)
        parts.append(content)
        position += HEADER_SIZE + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []
