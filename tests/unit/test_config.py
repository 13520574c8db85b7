"""The config tree composes, refuses what it should, and errors end in one line."""

import dataclasses
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from composed import CONFIG_FOLDER, ROOT, composed
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from diversed import config
from diversed.config import (
    DecodingConfig,
    EvaluationConfig,
    InputError,
    Interrupted,
    ObjectiveConfig,
    input_errors,
    run_job,
    run_script,
)

PROGRAMS = ("train", "eval")
GLOBAL_GROUPS = {"experiment", "debug"}  # change keys anywhere; have no node of their own


def read_yaml(path: Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


def groups(program: str) -> list[str]:
    defaults = read_yaml(CONFIG_FOLDER / f"{program}.yaml")["defaults"]
    names = [name for entry in defaults if isinstance(entry, dict) for name in entry]
    return [name for name in names if name not in GLOBAL_GROUPS]


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_FOLDER / group).glob("*.yaml"))


ONE_AT_A_TIME = [
    (program, group, choice)
    for program in PROGRAMS
    for group in groups(program)
    for choice in choices(group)
]


@pytest.mark.parametrize(("program", "group", "choice"), ONE_AT_A_TIME)
def test_every_choice_composes(program: str, group: str, choice: str) -> None:
    node = OmegaConf.to_container(composed(program, f"{group}={choice}")[group], resolve=False)
    content = read_yaml(CONFIG_FOLDER / group / f"{choice}.yaml")
    content.pop("defaults", None)
    if program == "train" and group == "verifier":
        content["checkpoint"] = None  # train.yaml: a new head unless one is given
    assert {key: node[key] for key in content} == content
    if "_target_" in content:
        assert callable(get_object(content["_target_"]))


def test_every_group_has_a_folder_and_every_folder_is_a_group() -> None:
    folders = {path.name for path in CONFIG_FOLDER.iterdir() if path.is_dir()}
    assert folders - GLOBAL_GROUPS == {name for p in PROGRAMS for name in groups(p)}


@pytest.mark.parametrize(
    ("program", "model", "verifier"),
    list(itertools.product(PROGRAMS, choices("model"), choices("verifier"))),
)
def test_every_verifier_composes_with_every_model(program: str, model: str, verifier: str) -> None:
    cfg = composed(program, f"model={model}", f"verifier={verifier}")
    assert cfg.model.name == model
    assert (
        cfg.verifier._target_ == read_yaml(CONFIG_FOLDER / f"verifier/{verifier}.yaml")["_target_"]
    )


def test_what_is_typed_as_lambda_is_the_acceptance_weight() -> None:
    assert composed("train").objective.acceptance_weight == 1.5
    assert composed("train", "lambda=0.25").objective.acceptance_weight == 0.25


@pytest.mark.parametrize("schema", [DecodingConfig, ObjectiveConfig, EvaluationConfig])
def test_every_schema_field_is_read(schema: type) -> None:
    source = (ROOT / "diversed" / "app.py").read_text()
    unread = [
        field.name
        for field in dataclasses.fields(schema)
        if not re.search(rf'(\.|")({field.name})\b', source)
    ]
    assert unread == []


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
