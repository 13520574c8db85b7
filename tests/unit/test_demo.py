"""The report of the demo, on a small folder of records made by hand."""

import errno
import io
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from diversed import demo
from diversed.records import store
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import (
    RecordsError,
    WriteError,
    write_manifest,
    write_records,
    write_trace,
)

NUM_PROMPTS = 4
TOKENS = (
    ("So", "accepted"),
    (" thus", "rejected"),
    (" the", "unjudged"),
    (" hence", "recovered"),
    (" 5", "accepted"),
    (".", "bonus"),
    ("\n", "recovered"),
)


def write_run(
    folder: Path, method: str, qualities: list[float], acceptance: float | None, **settings: float
) -> None:
    run = dict.fromkeys(RUN_COLUMNS) | settings | {"run_name": folder.name, "method": method}
    write_manifest(folder, {"run": run, "status": "finished"})
    drafts = 0 if acceptance is None else 4
    rows = [
        dict.fromkeys(ROW_COLUMNS)
        | {
            "prompt_id": f"p{index}",
            "sample": 0,
            "prompt": f"Question {index}?\n",
            "text": "So hence 5.",
            "answer": "5",
            "reference": "5" if quality == 1 else "6",
            "quality": quality,
            "end_reason": "eos",
            "is_truncated": False,
            "num_tokens": 4,
            "num_drafted": drafts,
            "num_judged": min(drafts, 3),
            "num_accepted": min(drafts, 2),
            "num_recovered": min(drafts, 1),
            "num_bonus": 1 if drafts else 4,
            "num_blocks": 2 if drafts else 4,
            "num_draft_calls": drafts,
            "expected_acceptance": acceptance,
            "mean_target_weight": settings.get("target_weight"),
            "seconds": 0.5,
        }
        for index, quality in enumerate(qualities)
    ]
    write_records(folder, rows)


def write_marks(folder: Path) -> None:
    entries = [
        dict.fromkeys(TRACE_COLUMNS, 0)
        | {"prompt_id": f"p{index}", "position": place, "token": token, "status": status}
        for index in range(NUM_PROMPTS)
        for place, (token, status) in enumerate(TOKENS)
    ]
    write_trace(folder, pd.DataFrame(entries))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    write_run(runs / "plain", "autoregressive", [1.0] * 4, None)
    write_run(runs / "lossless", "lossless", [1.0] * 4, 0.5)
    write_run(runs / "static-high", "static", [0.5] * 4, 0.8, target_weight=0.6)
    write_run(runs / "static-low", "static", [0.25] * 4, 0.9, target_weight=0.2)
    write_run(
        runs / "diversed", "diversed", [1.0, 0.0, 1.0, 1.0], 0.74, acceptance_weight=1.5, dial=0.0
    )
    write_marks(runs / "diversed")
    return tmp_path


def printed(folder: Path) -> str:
    screen = io.StringIO()
    demo.report(folder, Console(file=screen, width=100))
    return screen.getvalue()


def test_the_report_draws_the_figure_and_lists_every_run(folder: Path) -> None:
    text = printed(folder)
    assert (folder / "front.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "front.svg").read_text()
    table = (folder / "results.md").read_text()
    assert len(table.splitlines()) == 2 + 5
    for run in ("plain", "lossless", "static-high", "static-low", "diversed"):
        assert f"| {run} |" in table
    assert "0.740" in table
    assert "static, w = 0.6" in text
    assert "DIVERSED, λ = 1.5" in text
    assert "0.750 [" in text
    for name in ("front.png", "front.svg", "results.md", "distances.json", "samples.txt"):
        assert str(folder / name) in text
        assert (folder / name).is_file()


def test_the_distance_is_measured_from_the_hull(folder: Path) -> None:
    """Between (0.5, 1) and (0.8, 0.5) the hull is at 0.6 where A = 0.74; the run is at 0.75."""
    text = printed(folder)
    distances = json.loads((folder / "distances.json").read_text())
    assert list(distances) == ["diversed"]
    above = distances["diversed"]["quality_above_hull"]
    assert above["estimate"] == pytest.approx(0.15, abs=1e-9)
    assert above["low"] < above["estimate"] < above["high"]
    assert distances["diversed"]["acceptance_above_hull"]["estimate"] == pytest.approx(0.09)
    assert "hull, accuracy at equal acceptance: +0.150 [" in text


def test_samples_show_what_became_of_each_token(folder: Path) -> None:
    text = printed(folder)
    lines = (folder / "samples.txt").read_text().splitlines()
    assert lines[0] == "accepted as is, [recovered], {bonus}"
    answer = ["So [hence] 5{.}[↵]", ""]  # the line break itself is a recovered token
    assert lines[2:7] == ["Question 0?", *answer, "(right)", ""]
    assert lines[7:11] == ["Question 1?", *answer, "(wrong, 6 is right)"]
    assert sum(line.startswith("Question") for line in lines) == demo.NUM_SAMPLES
    assert answer[0] in text


def test_timed_speeds_replace_those_of_the_batch_and_are_compared(folder: Path) -> None:
    rows = [
        (run, prompt, 10, seconds)
        for run, seconds in (("plain", 1.0), ("lossless", 0.5), ("diversed", 0.25))
        for prompt in range(NUM_PROMPTS)
    ]
    columns = ["run_name", "prompt", "num_tokens", "seconds"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "speeds.csv", index=False)
    text = printed(folder)
    speed = json.loads((folder / "distances.json").read_text())["diversed"]["speed"]
    assert speed["plain"]["estimate"] == pytest.approx(4)
    assert speed["lossless"]["estimate"] == pytest.approx(2)
    assert "4.00 [4.00, 4.00] times plain" in text
    (row,) = [
        line for line in (folder / "results.md").read_text().splitlines() if "diversed" in line
    ]
    assert "| 40.0 |" in row


def test_without_timing_there_are_no_speeds(folder: Path) -> None:
    """Records time whole batches, which is no speed of a method."""
    assert "speed at batch 1, relative" not in printed(folder)
    assert "8.0" not in (folder / "results.md").read_text()  # 4 tokens in 0.5 s


def test_without_a_learnt_verifier_no_samples_are_promised(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "diversed")
    assert "samples.txt" not in printed(folder)
    assert not (folder / "samples.txt").exists()


def test_the_report_repeats_itself(folder: Path) -> None:
    printed(folder)
    names = ("front.png", "front.svg", "results.md", "distances.json", "samples.txt")
    before = [(folder / name).read_bytes() for name in names]
    printed(folder)
    assert [(folder / name).read_bytes() for name in names] == before


@pytest.mark.parametrize("name", ["results.md", "samples.txt", "distances.json"])
def test_a_full_disk_leaves_an_older_report_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file that was being written used to lose what it held."""
    printed(folder)
    (folder / name).write_text("older")
    real = store._flush

    def flush(path: Path) -> None:
        if path.name == f".{name}.partial":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    monkeypatch.setattr(store, "_flush", flush)
    with pytest.raises(WriteError, match=rf"{name} cannot be written: No space left on device"):
        printed(folder)
    assert (folder / name).read_text() == "older"


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordsError) as caught:
        printed(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_so_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["demo", "--figures-only", "--records", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit, match=f"RecordsError: {tmp_path}"):
        demo.main()


def test_heads_without_static_runs_are_shown_without_a_distance(tmp_path: Path) -> None:
    """The report used to end in an error before the table's files were complete."""
    write_run(tmp_path / "deep" / "own", "diversed", [1, 0, 1, 1], 0.9, acceptance_weight=1.5)
    console = Console(file=io.StringIO(), width=100)
    demo.report(tmp_path, console)
    assert "no static or lossless run" in console.file.getvalue()
    assert json.loads((tmp_path / "distances.json").read_text()) == {"own": {}}


def test_without_a_two_sided_interval_the_bound_is_printed(folder: Path) -> None:
    """A head that is right on every prompt is above the whole front in most resamples."""
    runs = folder / "runs"
    write_run(runs / "lossless", "lossless", [1.0, 1.0, 1.0, 0.0], 0.5)
    shutil.rmtree(runs / "static-high")
    write_run(runs / "diversed", "diversed", [1.0] * 4, 0.96, acceptance_weight=1.5, dial=0.0)
    text = printed(folder)
    (line,) = [line for line in text.splitlines() if "hull, acceptance at equal accuracy" in line]
    distance = json.loads((folder / "distances.json").read_text())["diversed"]
    bound = distance["acceptance_above_hull_bound"]
    share = distance["acceptance_above_hull"]["num_undefined_resamples"] / bound["num_resamples"]
    assert bound["low"] == pytest.approx(0.46)  # over lossless, the best of the front
    assert 0.5 < share < 1
    expected = f"at least +0.460 (beyond the front in {share:.0%} of resamples)"
    assert line.endswith(expected)


def test_a_two_sided_interval_is_printed_as_such(folder: Path) -> None:
    (line,) = [line for line in printed(folder).splitlines() if "hull, accuracy at equal" in line]
    assert "at least" not in line
    assert line.count("[") == 1


def test_static_runs_of_other_settings_are_no_part_of_the_front(folder: Path) -> None:
    text = printed(folder)
    before = json.loads((folder / "distances.json").read_text())
    write_run(
        folder / "runs" / "cold", "static", [1.0] * 4, 0.99, target_weight=0.1, temperature=0.1
    )
    assert "hull, accuracy at equal acceptance: +0.150 [" in text
    printed(folder)
    assert json.loads((folder / "distances.json").read_text()) == before


def test_the_front_has_its_band(folder: Path) -> None:
    for run in (folder / "runs").iterdir():
        manifest = json.loads((run / "manifest.json").read_text())
        manifest["run"]["draft_length"] = None if run.name == "plain" else 5
        (run / "manifest.json").write_text(json.dumps(manifest))
    printed(folder)
    drawing = (folder / "front.svg").read_text()
    assert drawing.count("95 % band of the hull") == 1
