"""finetune_draft.py as users run it, and its draft in eval.py and train.py."""

import signal
from pathlib import Path

import pytest
from composed import SMALL_DATA, SMALL_TRAINING
from script_processes import PATIENCE_S, run_script, start_script, wait_for

from diversed.records.store import read_manifest, read_records

pytestmark = pytest.mark.e2e

SMALL = (
    *(*SMALL_DATA, "decoding.max_new_tokens=32", "evaluation.num_prompts=4"),
    *("finetune.num_train_prompts=16", "finetune.batch_size=4"),
)


def only_run(folder: Path) -> Path:
    (found,) = folder.glob("outputs/finetune_draft/*")
    return found


def test_the_draft_is_used_by_the_other_scripts(tmp_path: Path) -> None:
    done = run_script(tmp_path, "finetune_draft.py", *SMALL, "finetune.num_epochs=2")
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    manifest = read_manifest(folder)
    assert manifest["status"] == "finished"
    assert (
        manifest["results"]["validation_loss_after"]
        < (manifest["results"]["validation_loss_before"])
    )
    advice = done.stdout.splitlines()[-1].partition("use it with: ")[2].split()
    assert advice == ["model.name=tiny_finetuned", f"model.draft.path={folder / 'draft'}"]
    evaluation = (*SMALL_DATA, "evaluation.num_prompts=8", "decoding.max_new_tokens=32", *advice)
    done = run_script(tmp_path, "eval.py", *evaluation, "hydra.run.dir=evaluated")
    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "evaluated")
    assert len(records) == 8
    assert set(records["model"]) == {"tiny_finetuned"}
    assert records["error"].isna().all()
    done = run_script(tmp_path, "train.py", *SMALL_TRAINING, *advice, "hydra.run.dir=trained")
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "trained")["status"] == "finished"


def test_ctrl_c_keeps_the_best_draft_until_then(tmp_path: Path) -> None:
    process = start_script(tmp_path, "finetune_draft.py", *SMALL, "finetune.num_epochs=10000")
    wait_for(process, lambda: any(tmp_path.glob("outputs/finetune_draft/*/metrics/metrics.csv")))
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
        done = run_script(tmp_path, "finetune_draft.py", argument)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.endswith(line)
    assert not list(tmp_path.glob("*/*/*"))
