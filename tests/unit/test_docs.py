"""What docs/adding_a_verifier.md and docs/serving.md tell people to type works."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from composed import ROOT, SMALL_DATA, composed
from script_processes import run_script

from diversed.app import evaluate
from diversed.config import InputError
from diversed.core.verifiers import VERIFIERS
from diversed.models.checkpoint import new_head
from diversed.models.loading import TINY_FOLDER, load_tiny_pair
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import read_records, read_trace

DOCS = ROOT / "docs"
ADDING = (DOCS / "adding_a_verifier.md").read_text()
SERVING = (DOCS / "serving.md").read_text()
SMALL = (*SMALL_DATA, "evaluation.num_prompts=4", "decoding.max_new_tokens=24")


def blocks(text: str, kind: str) -> list[str]:
    """Return the bodies of the fenced blocks of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [body for language, body in found if language == kind]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the reader has written the files of the document."""
    folder = tmp_path_factory.mktemp("reader")
    files = re.findall(
        r"`(my_rules/[\w/]+\.\w+)`:\n\n```\w+\n(.*?)^```$", ADDING, flags=re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in files] == [
        "my_rules/nucleus.py",
        "my_rules/conf/verifier/nucleus.yaml",
    ]
    for name, body in files:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(body)
    return folder


def commands() -> list[str]:
    return [line for body in blocks(ADDING, "") for line in body.splitlines()]


def run(folder: Path, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the document as in a checkout, the reader's files beside the scripts."""
    words = shlex.split(command)
    variables = dict(word.split("=", 1) for word in words[: words.index("python")])
    script, *arguments = words[words.index("python") + 1 :]
    return run_script(folder, script, *arguments, *more, **variables)


@pytest.mark.e2e
@pytest.mark.parametrize("command", commands(), ids=["config", "multirun", "target"])
def test_commands_evaluate_the_rule(workplace: Path, command: str) -> None:
    before = set(workplace.glob("*/eval/**/records.jsonl"))
    done = run(workplace, command, *SMALL)
    assert done.returncode == 0, done.stderr
    records = [file.parent for file in set(workplace.glob("*/eval/**/records.jsonl")) - before]
    masses = command.rpartition("mass=")[2].split(",")
    names = {f"tiny-arithmetic-nucleus-mass{mass}-seed0" for mass in masses}
    assert {read_records(folder)["run_name"].iloc[0] for folder in records} == names
    for folder in records:
        table = read_records(folder)
        assert len(table) == 4
        assert set(table["method"]) == {"nucleus"}
        assert table["expected_acceptance"].notna().all()
        assert table[["mean_target_weight", "bias", "target_weight"]].isna().all(axis=None)
        trace = read_trace(folder)
        drafted = trace[trace["status"].isin(["accepted", "rejected", "unjudged"])]
        assert set(drafted["accept_prob"]) <= {0.0, 1.0}
        assert (drafted["accept_prob"] == 1).sum() > 0
        assert trace["target_weight"].isna().all()


def test_a_bad_setting_of_the_rule_is_one_line(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(workplace / "my_rules")
    cfg = composed("eval", "verifier._target_=nucleus.NucleusVerifier", "+verifier.mass=1.5")
    with pytest.raises(InputError) as caught:
        evaluate(cfg, tmp_path)
    assert str(caught.value) == "verifier.mass=1.5: must lie in (0, 1]"
    monkeypatch.delitem(sys.modules, "nucleus")


def test_every_way_to_run_is_shown() -> None:
    assert len(commands()) == 3
    assert sum("--config-dir" in command for command in commands()) == 2
    assert sum("verifier._target_=" in command for command in commands()) == 1


def test_python_blocks_run(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(workplace / "my_rules")
    rule, use = blocks(ADDING, "python")
    assert rule == (workplace / "my_rules" / "nucleus.py").read_text()
    file = workplace / "use.py"
    file.write_text(use)
    runpy.run_path(str(file))
    *_, acceptance = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"tensor\(\[0\.\d+\]\)", acceptance)
    monkeypatch.delitem(sys.modules, "nucleus")


def test_fields_that_are_named_exist() -> None:
    in_records = re.search(r"## In the records\n(.*?)\n## ", ADDING, flags=re.DOTALL)
    assert in_records
    known = ROW_COLUMNS.keys() | TRACE_COLUMNS.keys() | RUN_COLUMNS.keys()
    named = set(re.findall(r"`(\w+)`", in_records[1]))
    assert named - known == {"name", "accept_table", "MixtureVerifier"}
    assert "expected_acceptance" in named


def test_the_example_takes_no_name_of_ours() -> None:
    assert "nucleus" not in VERIFIERS


def test_a_head_is_served_in_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_head(load_tiny_pair(), initial_weight=0.5).save_pretrained(tmp_path / "head")
    (code,) = blocks(SERVING, "python")
    places = {
        "Qwen/Qwen2.5-Coder-1.5B-Instruct": TINY_FOLDER / "target",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct": TINY_FOLDER / "draft",
        "outputs/train/<run>/head": tmp_path / "head",
        "def fibonacci(n):": "Ada has 3 pens. How many pens are there?",
    }
    for said, here in places.items():
        assert said in code
        code = code.replace(said, str(here))
    file = tmp_path / "serve.py"
    file.write_text(code)
    scope = runpy.run_path(str(file))
    assert "Ada has 3 pens" in capsys.readouterr().out
    assert scope["output"].shape[1] > scope["inputs"]["input_ids"].shape[1]


@pytest.mark.parametrize("text", [ADDING, SERVING], ids=["adding_a_verifier", "serving"])
def test_files_that_are_linked_exist(text: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    assert [link for link in links if not (DOCS / link).exists()] == []
