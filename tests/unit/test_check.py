"""check=true: what it looks at, what it says, and that nothing stays of it."""

import io
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from composed import SMALL_DATA, composed
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.console import Console

from diversed import config
from diversed.app import check as check_job
from diversed.app import machine
from diversed.app.findings import OK, PROBLEM, UNCHECKED, Finding
from diversed.app.finetuning import finetuning_memory
from diversed.app.preflight import preflight
from diversed.config import run_check
from diversed.models.loading import DTYPES, TINY_FOLDER, load_tiny_pair
from diversed.models.memory import Workload
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.trainable import TrainableDraft

SMALL = (*SMALL_DATA, "decoding.max_new_tokens=16")
STEPS = ["settings", "target", "draft", "tokenizers", "data", "prompts", "memory", "two prompts"]
MODULE = "diversed.app.preflight"


def look(program: str, *overrides: str) -> dict[str, Finding]:
    findings = preflight(composed(program, *SMALL, *overrides))
    assert [finding.what for finding in findings] == STEPS
    assert not [finding for finding in findings if "\n" in finding.detail]
    return {finding.what: finding for finding in findings}


def problems(findings: dict[str, Finding]) -> list[str]:
    return [what for what, finding in findings.items() if finding.result == PROBLEM]


@pytest.mark.parametrize("program", ["train", "eval"])
def test_a_run_that_can_start_has_every_step_looked_at(program: str) -> None:
    findings = look(program)
    assert {finding.result for finding in findings.values()} == {OK}
    assert findings["target"].detail == str(TINY_FOLDER / "target")
    rows = "16 test rows" + (", 16 train rows, 8 validation rows" if program == "train" else "")
    assert findings["data"].detail == rows
    assert "32 tokens in" in findings["two prompts"].detail
    assert "context 256" in findings["prompts"].detail


BAD = {
    "eval verifier=diversed": ("settings", "verifier.checkpoint has no value"),
    "eval evaluation.split=dev": ("settings", "split='dev'"),
    "eval trainer.accelerator=quantum": ("settings", "quantum"),
    "train lambda=-1": ("settings", "lambda=-1: must be a finite number >= 0"),
    "train verifier=static": ("settings", "train.py trains the head of verifier=diversed"),
    "eval data=mbpp": ("settings", "allow_code_execution"),
    "eval model.target.path=/no/such": ("target", "model.target.path=/no/such: the folder does"),
    "eval model.draft.path=null": ("draft", "model.draft.name=diversed/tiny-draft"),
    "eval evaluation.num_prompts=17": ("data", "evaluation.num_prompts=17: must be at least 1"),
    "eval data=gsm8k": ("data", "give data.path="),
    "eval decoding.max_new_tokens=1000": ("prompts", "decoding.max_new_tokens=1000"),
    "eval verifier=diversed verifier.checkpoint=/": ("two prompts", "no config.json"),
    "train decoding.temperature=0": ("two prompts", "decoding.temperature=0: training samples"),
    "train objective.prompts_per_step=17": ("two prompts", "objective.prompts_per_step=17"),
    "train optimizer.lr=-1": ("two prompts", "Invalid learning rate"),
}


@pytest.mark.parametrize(("command", "wanted"), BAD.items())
def test_what_is_wrong_is_found_where_it_is_looked_at(
    command: str, wanted: tuple[str, str]
) -> None:
    program, *overrides = command.split()
    step, words = wanted
    kept = SMALL if "data=" not in command else SMALL[len(SMALL_DATA) :]
    findings = {
        finding.what: finding for finding in preflight(composed(program, *kept, *overrides))
    }
    assert problems(findings) == [step]
    assert words in findings[step].detail
    later = findings["two prompts"]
    assert later.result == (PROBLEM if step == "two prompts" else UNCHECKED)
    assert step == "two prompts" or step in later.detail


def test_models_that_cannot_be_had_are_each_named_with_the_way_to_log_in() -> None:
    findings = look("eval", "model=llama")
    assert problems(findings) == ["target", "draft"]
    for role in ("target", "draft"):
        assert f"model.{role}.name=meta-llama/" in findings[role].detail
        assert "log in with `hf auth login`" in findings[role].detail
        assert f"model.{role}.path" in findings[role].detail
    assert findings["settings"].result == findings["data"].result == OK
    assert findings["tokenizers"].result == UNCHECKED


def test_other_tokenizers_are_found_before_weights_are_loaded(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(TINY_FOLDER / "draft", draft)
    file = draft / "tokenizer.json"
    file.write_text(file.read_text().replace('" apples"', '" pears"'))
    (draft / "model.safetensors").unlink()
    findings = look("eval", f"model.draft.path={draft}", "model.draft.name=other/draft")
    assert problems(findings) == ["tokenizers"]
    assert "other/draft and model.target=diversed/tiny-target" in findings["tokenizers"].detail


def test_damaged_weights_are_found_by_decoding(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(TINY_FOLDER / "draft", draft)
    (draft / "model.safetensors").write_text("junk")
    findings = look("eval", f"model.draft.path={draft}")
    assert problems(findings) == ["two prompts"]
    assert f"model.draft.path={draft}" in findings["two prompts"].detail


def test_completions_that_cannot_be_scored_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("no judge")

    monkeypatch.setattr(ArithmeticTask, "score", fail)
    findings = look("eval")
    assert problems(findings) == ["two prompts"]
    assert "no judge" in findings["two prompts"].detail


def test_too_little_memory_names_need_room_and_what_to_lower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.free_bytes", lambda device: 2**20)
    findings = look("eval")
    assert problems(findings) == ["memory"]
    for words in ("MiB, but only 1 MiB are free on cpu", "lower evaluation.batch_size"):
        assert words in findings["memory"].detail
    assert findings["two prompts"] == Finding("two prompts", UNCHECKED, "needs memory")


def test_weights_must_fit_the_machine_before_they_reach_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = SimpleNamespace(device=torch.device("meta"), world_size=1)
    monkeypatch.setattr(f"{MODULE}.job_fabric", lambda cfg, seat: device)
    monkeypatch.setattr(f"{MODULE}.host_free_bytes", lambda: 1000)
    findings = look("eval")
    assert problems(findings) == ["memory"]
    assert findings["memory"].detail.startswith("weights 6 MiB, but only 0 MiB are free on cpu")


@pytest.mark.parametrize(
    ("program", "overrides", "wanted"),
    [
        ("eval", ["evaluation.batch_size=5"], Workload(5, 49, 16, 5)),
        ("eval", ["evaluation.num_prompts=3"], Workload(3, 49, 16, 5)),
        ("eval", ["evaluation.samples_per_prompt=9"], Workload(64, 49, 16, 5)),
        ("train", ["objective.prompts_per_step=8"], Workload(64, 49, 16, 5, True)),
        ("train", ["evaluation.batch_size=1"], Workload(128, 49, 16, 5, True)),
    ],
)
def test_memory_is_that_of_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch, program: str, overrides: list[str], wanted: Workload
) -> None:
    seen = []
    real = check_job.__globals__["pair_memory"]

    def noted(*arguments):
        seen.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(f"{MODULE}.pair_memory", noted)
    findings = look(program, *overrides)
    (workload,) = seen
    assert f" to {workload.prompt_length} tokens" in findings["prompts"].detail
    assert vars(workload) | {"prompt_length": 49} == vars(wanted)


def test_fine_tuning_needs_room_for_gradients_and_the_optimiser(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what decoding needs used to be counted."""
    decoding = look("eval", "evaluation.num_prompts=4")["memory"].detail
    needed = look("finetune_draft", "evaluation.num_prompts=4", "finetune.num_train_prompts=16")
    detail = needed["memory"].detail
    for name in ("weights", "gradients", "optimizer", "activations", "best draft"):
        assert f"{name} " in detail
    assert "optimizer" not in decoding
    monkeypatch.setattr(f"{MODULE}.free_bytes", lambda device: 8 * 2**20)
    short = look("finetune_draft", "evaluation.num_prompts=1", "evaluation.batch_size=1")
    assert problems(short) == ["memory"]
    assert short["memory"].detail.endswith(
        "but only 8 MiB are free on cpu: lower finetune.batch_size, set adapter=lora, or choose a "
        "smaller draft"
    )


@pytest.mark.parametrize("overrides", [[], ["model.dtype=bfloat16"], ["adapter=lora"]])
def test_memory_of_fine_tuning_is_that_of_the_real_draft_and_optimiser(
    overrides: list[str],
) -> None:
    cfg = composed("finetune_draft", *overrides)
    pair = load_tiny_pair()
    config = pair.draft.model.config
    expected = finetuning_memory(cfg, config, length=50)
    draft = pair.draft.model.to(DTYPES[cfg.model.dtype])
    model = TrainableDraft(draft, instantiate(cfg.adapter) if cfg.adapter else None).model
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = instantiate(cfg.optimizer)(trained)
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert expected.weights == sum(weights.nbytes for weights in model.parameters())
    assert expected.gradients == sum(weights.grad.nbytes for weights in trained)
    assert expected.optimizer == sum(value.nbytes for value in states)
    if not overrides:  # AdamW: two numbers beside each of the 61 thousand, and steps
        assert expected.optimizer == 2 * 4 * draft.num_parameters() + 4 * len(trained)


def test_table_and_problems_say_the_same() -> None:
    console = Console(file=io.StringIO(), width=160)
    lines = check_job(composed("eval", *SMALL, "model.draft.path=/no/such"), console)
    assert len(lines) == 1
    assert lines[0].startswith("draft: model.draft.path=/no/such: the folder does not exist")
    shown = console.file.getvalue().splitlines()
    rows = [line.split("│")[1:-1] for line in shown if line.startswith("│")]
    results = {row[0].strip(): row[1].strip() for row in rows if row[0].strip()}
    assert list(results) == STEPS
    assert results["target"] == OK
    assert results["draft"] == PROBLEM
    assert results["memory"] == UNCHECKED


@pytest.mark.parametrize(
    ("limit", "used", "wanted"),
    [(None, None, 4096000), ("max", "5", 4096000), ("3000", "1000", 2000), ("10", "20", 0)],
)
def test_free_memory_is_what_machine_and_container_leave(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    limit: str | None,
    used: str | None,
    wanted: int,
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal:  9000 kB\nMemFree: 1 kB\nMemAvailable:   4000 kB\n")
    monkeypatch.setattr(machine, "_MEMORY_INFO", info)
    for name, content in (("_LIMIT", limit), ("_USED", used)):
        monkeypatch.setattr(machine, name, tmp_path / name)
        if content is not None:
            (tmp_path / name).write_text(f"{content}\n")
    assert machine.host_free_bytes() == machine.free_bytes(torch.device("cpu")) == wanted
    assert machine.free_bytes(torch.device("meta")) is None


def hydra_says(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: RunMode) -> None:
    state = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(folder)), mode=mode)
    monkeypatch.setattr(config.HydraConfig, "get", lambda: state)
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("a: 1\n")
    (folder / "eval.log").write_text("")


@pytest.mark.parametrize("found", [[], ["a: b", "c: d"]])
def test_nothing_stays_and_problems_are_lines_on_stderr(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    found: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    hydra_says(monkeypatch, tmp_path / "outputs" / "eval" / "now", RunMode.RUN)
    if found:
        with pytest.raises(SystemExit) as stop:
            run_check(lambda cfg: found, OmegaConf.create())
        assert stop.value.code == 2
    else:
        run_check(lambda cfg: found, OmegaConf.create())
    assert capsys.readouterr().err.splitlines() == found
    assert list(tmp_path.iterdir()) == []


def test_folders_with_something_in_them_or_elsewhere_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    (work / "outputs" / "train").mkdir(parents=True)
    monkeypatch.chdir(work)
    hydra_says(monkeypatch, work / "outputs" / "eval" / "now", RunMode.RUN)
    run_check(lambda cfg: [], OmegaConf.create())
    assert [path.name for path in (work / "outputs").iterdir()] == ["train"]
    hydra_says(monkeypatch, elsewhere / "now", RunMode.RUN)
    run_check(lambda cfg: [], OmegaConf.create())
    assert list(elsewhere.iterdir()) == []


def test_a_multirun_looks_at_every_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "_failed_points", [])
    for number in range(2):
        hydra_says(monkeypatch, tmp_path / str(number), RunMode.MULTIRUN)
        run_check(lambda cfg, number=number: [f"{number}: no"], OmegaConf.create())
    assert config._failed_points == ["0: no", "1: no"]
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_processes_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "1")
    run_check(lambda cfg: pytest.fail("looked"), composed("eval", "trainer=ddp"))
