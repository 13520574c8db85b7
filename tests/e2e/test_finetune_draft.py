"""finetune_draft.py as users run it, and its draft in eval.py and train.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from composed import ROOT, SMALL_DATA, SMALL_TRAINING

from diversed.records.store import read_manifest, read_records

pytestmark = pytest.mark.e2e

PATIENCE_S = 240
SMALL = (
    *(*SMALL_DATA, "decoding.max_new_tokens=32", "evaluation.num_prompts=4"),
    *("finetune.num_train_prompts=16", "finetune.batch_size=4"),
)


def start(folder: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, script: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a script that is run in a folder."""
    process = start(folder, script, *arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def only_run(folder: Path) -> Path:
    (found,) = folder.glob("outputs/finetune_draft/*")
    return found


def test_the_draft_is_used_by_the_other_scripts(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "finetune_draft.py", *SMALL, "finetune.num_epochs=2")
    assert code == 0, err
    folder = only_run(tmp_path)
    manifest = read_manifest(folder)
    assert manifest["status"] == "finished"
    assert (
        manifest["results"]["validation_loss_after"]
        < (manifest["results"]["validation_loss_before"])
    )
    advice = out.splitlines()[-1].partition("use it with: ")[2].split()
    assert advice == ["model.name=tiny_finetuned", f"model.draft.path={folder / 'draft'}"]
    evaluation = (*SMALL_DATA, "evaluation.num_prompts=8", "decoding.max_new_tokens=32", *advice)
    code, _, err = run(tmp_path, "eval.py", *evaluation, "hydra.run.dir=evaluated")
    assert code == 0, err
    records = read_records(tmp_path / "evaluated")
    assert len(records) == 8
    assert set(records["model"]) == {"tiny_finetuned"}
    assert records["error"].isna().all()
    code, _, err = run(tmp_path, "train.py", *SMALL_TRAINING, *advice, "hydra.run.dir=trained")
    assert code == 0, err
    assert read_manifest(tmp_path / "trained")["status"] == "finished"


def test_ctrl_c_keeps_the_best_draft_until_then(tmp_path: Path) -> None:
    process = start(tmp_path, "finetune_draft.py", *SMALL, "finetune.num_epochs=10000")
    waits_until = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("outputs/finetune_draft/*/metrics/metrics.csv")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < waits_until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "stopping after this step" in out
    folder = only_run(tmp_path)
    last = err.splitlines()[-1]
    assert last.startswith("stopped after ")
    assert str(folder / "draft") in last
    assert read_manifest(folder)["status"] == "stopped"
    assert (folder / "draft" / "model.safetensors").is_file()


def test_bad_input_is_one_line_and_no_folder(tmp_path: Path) -> None:
    for argument, line in {
        "source=both": "source=both: must be one of target, references\n",
        "finetune.num_epoch=2": "did you mean finetune.num_epochs?\n",
        "adapter.rank=8": "it is a key of adapter=lora\n",
    }.items():
        code, _, err = run(tmp_path, "finetune_draft.py", argument)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.endswith(line)
    assert not list(tmp_path.glob("*/*/*"))
