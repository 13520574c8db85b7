"""The config tree composes, refuses what it should, and errors end in one line."""

import functools
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from composed import CONFIG_FOLDER, ROOT, composed
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import get_object, instantiate
from lightning import Trainer
from omegaconf import DictConfig, OmegaConf

from diversed import config
from diversed.config import (
    InputError,
    Interrupted,
    input_errors,
    register_schemas,
    run_job,
    run_script,
)
from diversed.models.head import EnsembleHead

PROGRAMS = sorted(
    path.stem for path in CONFIG_FOLDER.glob("*.yaml") if (ROOT / f"{path.stem}.py").is_file()
)
GLOBAL_GROUPS = {"experiment", "debug"}  # change keys anywhere; have no node of their own
CODE_TASKS = ("humaneval", "mbpp")
PRODUCT = ("model", "data", "verifier")


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


def groups(program: str) -> list[str]:
    defaults = read_yaml(CONFIG_FOLDER / f"{program}.yaml")["defaults"]
    names = [name for entry in defaults if isinstance(entry, dict) for name in entry]
    chosen = [name for name in names if not name.startswith("optional ")]
    return [name for name in chosen if name not in GLOBAL_GROUPS]


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml"))


def is_part(content: object, node: object) -> bool:
    """Return whether a mapping has everything that a file says, at any depth."""
    if isinstance(content, dict) and isinstance(node, dict):
        return all(key in node and is_part(content[key], node[key]) for key in content)
    return content == node


ONE_AT_A_TIME = [
    (program, group, choice)
    for program in PROGRAMS
    for group in groups(program)
    for choice in choices(group)
]


@pytest.mark.parametrize(("program", "group", "choice"), ONE_AT_A_TIME)
def test_every_choice_composes(program: str, group: str, choice: str) -> None:
    cfg = OmegaConf.to_container(composed(program, f"{group}={choice}"), resolve=False)
    file = CONFIG_FOLDER / group / f"{choice}.yaml"
    content = read_yaml(file)
    content.pop("defaults", None)
    if not file.read_text().startswith("# @package _global_"):
        content = {group: content}
    targets = [node["_target_"] for node in content.values() if "_target_" in node]
    assert all(callable(get_object(target)) for target in targets)
    for name, node in content.items():
        assert node.keys() <= cfg[name].keys()
        changed = read_yaml(CONFIG_FOLDER / f"{program}.yaml").get(name, {})  # by the script
        kept = {key: value for key, value in node.items() if key not in changed}
        assert is_part(kept, cfg[name])


def test_every_script_has_a_config() -> None:
    assert {"eval", "train"} <= set(PROGRAMS)


def test_every_group_has_a_folder_and_every_folder_is_a_group() -> None:
    folders = {path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()}
    assert folders - GLOBAL_GROUPS == {name for p in PROGRAMS for name in groups(p)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_experiment_and_debug_stand_last_so_that_debug_wins(program: str) -> None:
    defaults = read_yaml(CONFIG_FOLDER / f"{program}.yaml")["defaults"]
    assert defaults[-2:] == [{"experiment": None}, {"debug": None}]


def examples(program: str) -> list[list[str]]:
    """Return the arguments of the commands that --help shows."""
    header = read_yaml(CONFIG_FOLDER / f"{program}.yaml")["hydra"]["help"]["header"]
    lines = re.findall(rf"^ *python {program}\.py(.*)$", header, flags=re.MULTILINE)
    assert lines
    return [re.split(r"  +", line)[0].split() for line in lines]  # without the remark behind


@pytest.mark.parametrize("program", PROGRAMS)
def test_examples_in_the_help_compose(program: str) -> None:
    for words in examples(program):
        flags = [word for word in words if word.startswith("-")]
        assert flags in ([], ["-m"])
        overrides = [word for word in words if word not in flags]
        if flags:
            overrides = [word.split(",")[0] for word in overrides]
        composed(program, *overrides)


@functools.cache
def node_alone(group: str, choice: str) -> DictConfig:
    return composed("eval", f"{group}={choice}")[group]


@pytest.mark.parametrize(
    ("model", "data"), list(itertools.product(choices("model"), choices("data")))
)
def test_model_data_and_verifier_compose_in_full(model: str, data: str) -> None:
    wanted = [(model, data, verifier) for verifier in choices("verifier")]
    for choice in wanted:
        for group, name in zip(PRODUCT, choice, strict=True):
            node_alone(group, name)  # initialises Hydra for itself
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        for choice in wanted:
            chosen = dict(zip(PRODUCT, choice, strict=True))
            cfg = compose("eval", overrides=[f"{group}={name}" for group, name in chosen.items()])
            assert all(cfg[group] == node_alone(group, name) for group, name in chosen.items())


@pytest.mark.parametrize("model", choices("model"))
def test_a_pair_names_both_models_with_revision_and_path(model: str) -> None:
    node = OmegaConf.to_container(composed("eval", f"model={model}").model)
    assert node["name"] == model
    assert node.keys() == {"name", "dtype", "attn_implementation", "target", "draft"}
    for role in ("target", "draft"):
        assert node[role].keys() == {"name", "revision", "path"}
        assert node[role]["revision"] == "main"


@pytest.mark.parametrize("data", choices("data"))
def test_a_task_is_built_without_its_rows(data: str) -> None:
    node = composed("eval", f"data={data}").data
    if data in CODE_TASKS:
        with pytest.raises(InputError, match="allow_code_execution"), input_errors():
            instantiate(node)
        return
    assert instantiate(node).name.startswith(data)


@pytest.mark.parametrize("kind", choices("head"))
def test_a_head_is_built(kind: str) -> None:
    options = OmegaConf.to_container(composed("train", f"head={kind}").head)
    sizes = {"hidden_size": 4}
    head = EnsembleHead(
        draft_size=4, target_size=4, pair={"draft": sizes, "target": sizes}, **options
    )
    weight = torch.sigmoid(head(torch.ones(2, 4), torch.ones(2, 4), None))
    assert torch.allclose(weight, torch.full((2,), options["initial_weight"]))


@pytest.mark.parametrize("optimizer", choices("optimizer"))
@pytest.mark.parametrize("scheduler", choices("scheduler"))
def test_optimizer_and_schedule_start_at_the_rate_or_rise_to_it_and_fall(
    optimizer: str, scheduler: str
) -> None:
    number = 40
    cfg = composed(
        "train",
        f"optimizer={optimizer}",
        f"scheduler={scheduler}",
        f"objective.num_rollouts={number}",
    )
    made = instantiate(cfg.optimizer)([torch.nn.Parameter(torch.zeros(2))])
    schedule = instantiate(cfg.scheduler)(made)
    rates = []
    for _ in range(number):
        rates.append(made.param_groups[0]["lr"])
        made.step()
        schedule.step()
    top = rates.index(max(rates))
    assert rates[top] == pytest.approx(cfg.optimizer.lr)
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[-1] < 0.2 * rates[top]


def test_warm_up_lasts_ten_rollouts_and_the_cosine_ends_at_zero() -> None:
    schedule = composed("train", "scheduler=warmup_cosine", "objective.num_rollouts=100").scheduler
    made = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = instantiate(schedule)(made).lr_lambdas[0]
    assert [factor(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 0.5, 1, 0.5, 0])


@pytest.mark.parametrize("trainer", choices("trainer"))
def test_a_trainer_is_built(trainer: str) -> None:
    cfg = composed("train", f"trainer={trainer}", "trainer.accelerator=cpu", "trainer.devices=1")
    made = instantiate(cfg.trainer, logger=False)
    assert isinstance(made, Trainer)
    assert made.max_epochs == cfg.trainer.max_epochs


@pytest.mark.parametrize("choice", choices("logger"))
def test_a_logger_waits_for_its_folder(choice: str) -> None:
    node = composed("train", f"logger={choice}").logger
    if choice == "none":
        assert not node
        return
    assert callable(instantiate(node))


def test_what_is_typed_as_lambda_is_the_acceptance_weight() -> None:
    assert composed("train").objective.acceptance_weight == 1.5
    assert composed("train", "lambda=0.25").objective.acceptance_weight == 0.25


@pytest.mark.parametrize(
    "override",
    [
        "decoding.draft_length=many",
        "decoding.draft_length=1.5",
        "decoding.top_k=null",
        "decoding.temperature=warm",
        "objective.num_rollouts=0.5",
        "objective.uses_score_gradient=perhaps",
        "evaluation.num_prompts=all",
        "evaluation.writes_trace=sometimes",
    ],
)
def test_a_value_of_the_wrong_type_is_refused(override: str) -> None:
    key, value = override.split("=")
    with pytest.raises(HydraException) as caught:
        composed("train", override)
    text = " ".join([str(caught.value), str(caught.value.__cause__)])
    assert key in text
    assert value in text or value == "null"


@pytest.fixture
def last_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function: what a script that raises an error leaves on stderr, and its exit code."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # restored afterwards; run_script sets it
    monkeypatch.setattr(config, "_WANTS_TRACE", False)

    def run(error: Exception | None = None, *overrides: str) -> tuple[str, int]:
        def main() -> None:
            if error is not None:
                raise error
            composed("train", *overrides)

        with pytest.raises(SystemExit) as stop:
            run_script(main, CONFIG_FOLDER, "train")
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line, int(stop.value.code or 0)

    return run


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("decoding.temprature=1", "decoding.temperature"),
        ("lamda=1", "lambda"),
        ("objective.num_rollout=3", "objective.num_rollouts"),
        ("model.target.pth=x", "model.target.path"),
        ("verifer=static", "verifier"),
    ],
)
def test_an_unknown_key_gets_a_suggestion(last_words, override: str, hint: str) -> None:
    line, code = last_words(None, override)
    assert code == 2
    assert f"'{override.split('=')[0]}'" in line
    assert line.endswith(f"; did you mean {hint}?")


def test_a_key_of_another_choice_names_that_choice(last_words) -> None:
    line, code = last_words(None, "verifier.weight=0.5")
    assert code == 2
    assert line.endswith("; it is a key of verifier=static")


def test_an_experiment_of_another_script_names_that_script(last_words) -> None:
    with pytest.raises(HydraException) as caught:
        composed("eval", "experiment=table1_gsm8k_llama")
    line, code = last_words(caught.value)
    assert code == 2
    assert "experiment/" in line
    assert line.endswith("; the experiment is for train.py")


def test_a_key_like_no_other_gets_the_list_of_keys(last_words) -> None:
    line, code = last_words(None, "zzz=1")
    assert code == 2
    assert "known keys: " in line
    assert "decoding.draft_length" in line


@pytest.mark.parametrize("group", ["model", "data", "verifier", "head", "logger", "objective"])
def test_an_unknown_choice_gets_the_list_of_choices(last_words, group: str) -> None:
    line, code = last_words(None, f"{group}=foo")
    assert code == 2
    assert f"'{group}/foo'" in line
    assert all(choice in line for choice in choices(group))
    assert "search path" not in line


def test_a_wrong_type_names_key_and_value(last_words) -> None:
    line, code = last_words(None, "decoding.draft_length=many")
    assert code == 2
    assert "decoding.draft_length" in line
    assert "'many'" in line


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("lambda=-1: no"), ["lambda=-1: no"]),
        (PermissionError(13, "Permission denied", "/x"), ["/x", "denied", "hydra.run.dir"]),
        (OSError("disk\n\n  gone"), ["disk; gone"]),
    ],
)
def test_errors_of_the_user_end_in_one_line(last_words, error, words: list[str]) -> None:
    line, code = last_words(error)
    assert code == 2
    assert all(word in line for word in words)
    assert "None" not in line


def test_errors_of_ours_keep_their_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_script(main, CONFIG_FOLDER, "train")


def test_a_trace_is_shown_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.setattr(config, "_WANTS_TRACE", True)

    def main() -> None:
        raise InputError("lambda")

    with pytest.raises(InputError):
        run_script(main, CONFIG_FOLDER, "train")


@pytest.mark.parametrize("error", [ValueError("a\nb"), FileNotFoundError("a\nb")])
def test_set_up_errors_become_one_line(error: Exception) -> None:
    with pytest.raises(InputError, match=r"^a; b$"), input_errors():
        raise error


def test_set_up_errors_of_a_component_are_its_own_words() -> None:
    node = {"_target_": "diversed.core.verifiers.StaticVerifier", "weight": 2.0}
    message = r"^verifier.weight=2.0: must lie in \[0, 1\]$"
    with pytest.raises(InputError, match=message), input_errors():
        instantiate(node)


def test_a_component_that_cannot_be_called_is_named() -> None:
    node = {"_target_": "diversed.core.verifiers.StaticVerifier", "wait": 2.0}
    with pytest.raises(InputError, match=r"StaticVerifier.*wait"), input_errors():
        instantiate(node)
    with pytest.raises(InstantiationException):
        instantiate(node)


def test_bugs_are_not_input_errors() -> None:
    with pytest.raises(KeyError), input_errors():
        raise KeyError("a")


def hydra_says(monkeypatch: pytest.MonkeyPatch, folder: Path, mode: RunMode) -> None:
    state = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(folder)), mode=mode)
    monkeypatch.setattr(config.HydraConfig, "get", lambda: state)
    monkeypatch.setattr(config, "_WANTS_TRACE", False)
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text("a: 1\n")
    (folder / "train.log").write_text("")


def refuse(cfg, folder: Path) -> None:
    raise InputError("lambda=-1: no")


def test_bad_input_leaves_no_folder_of_a_single_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hydra_says(monkeypatch, tmp_path / "run", RunMode.RUN)
    with pytest.raises(SystemExit) as stop:
        run_job(refuse, OmegaConf.create())
    assert stop.value.code == 2
    assert capsys.readouterr().err == "lambda=-1: no\n"
    assert list(tmp_path.iterdir()) == []


def test_bad_input_does_not_remove_an_older_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With hydra.run.dir naming a finished run, the whole run used to be deleted."""
    hydra_says(monkeypatch, tmp_path, RunMode.RUN)
    (tmp_path / "records.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit):
        run_job(refuse, OmegaConf.create())
    assert (tmp_path / "records.jsonl").is_file()


@pytest.mark.parametrize("number", [1, 3])
def test_bad_points_of_a_multirun_are_recorded_and_fail_it_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def main() -> None:
        for point in map(str, range(number)):
            hydra_says(monkeypatch, tmp_path / point, RunMode.MULTIRUN)
            run_job(refuse, OmegaConf.create())
            assert (tmp_path / point / "error.txt").read_text() == "lambda=-1: no\n"

    with pytest.raises(SystemExit) as stop:
        run_script(main, CONFIG_FOLDER, "train")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lambda=-1: no")
    assert ("2 more failed points" in line) == (number == 3)


@pytest.mark.parametrize("mode", [RunMode.RUN, RunMode.MULTIRUN])
def test_an_interrupted_job_is_kept_and_ends_the_script(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: RunMode,
) -> None:
    """In a multirun the points behind the interrupted one used to run."""

    def stop(cfg, folder: Path) -> None:
        raise Interrupted("go on with: this")

    hydra_says(monkeypatch, tmp_path, mode)
    with pytest.raises(SystemExit) as caught:
        run_job(stop, OmegaConf.create())
    assert caught.value.code == 130
    assert capsys.readouterr().err == "go on with: this\n"
    assert (tmp_path / "train.log").is_file()


def test_a_job_gets_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hydra_says(monkeypatch, tmp_path, RunMode.RUN)
    assert run_job(lambda cfg, folder: (cfg.a, folder), OmegaConf.create({"a": 1})) == (1, tmp_path)
