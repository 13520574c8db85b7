"""Sweep files: W&B and Hydra read the same grid, and a point is run once."""

import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from composed import (
    CONFIG_FOLDER,
    ROOT,
    SMALL_DATA,
    SMALL_EVALUATION,
    SMALL_TRAINING,
    composed,
)
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import OmegaConf
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from diversed import app, config, sweep
from diversed.app.runs import run_columns
from diversed.config import InputError, register_schemas, run_job
from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.core.verifiers import StaticVerifier
from diversed.grid import Grid, read_grid
from diversed.models.checkpoint import new_head
from diversed.models.loading import load_tiny_pair
from diversed.notebooks.evidence import STUDIES
from diversed.records.folders import read_state
from diversed.records.schema import RUN_COLUMNS
from diversed.records.store import read_manifest, read_records, write_json, write_manifest

SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
EVIDENCE = sorted((ROOT / "sweeps" / "evidence").glob("*.yaml"))
NAMES = {
    *("static_front", "diversed_lambda", "lossy_front", "draft_length", "transfer", "temperature"),
}
MACROS = {"env": ["/usr/bin/env"], "interpreter": ["python"]}
EVALUATION = """
program: eval.py
method: grid
parameters:
  verifier: {value: static}
  verifier.weight: {values: [0.2, 0.8]}
  seed: {values: [0, 1]}
command: ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"]
"""

every_file = pytest.mark.parametrize("path", [*SWEEPS, *EVIDENCE], ids=lambda path: path.stem)
every_sweep = pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)


def read_yaml(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def points_of(path: Path) -> list[dict[str, Any]]:
    """Return the grid as W&B has it."""
    parameters = read_yaml(path)["parameters"]
    lists = [e["values"] if "values" in e else [e["value"]] for e in parameters.values()]
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*lists)]


def rendered(path: Path, point: dict[str, Any]) -> list[str]:
    """Return the command that an agent of W&B runs for a point, made by W&B's own functions."""
    sweep_file = read_yaml(path)
    arguments = create_sweep_command_args({"args": {k: {"value": v} for k, v in point.items()}})
    macros = MACROS | {"program": [sweep_file["program"]]} | arguments
    words = []
    for word in create_sweep_command(list(sweep_file["command"])):
        words += macros[word[2:-1]] if word.startswith("${") else [word]
    return words


def parsed(overrides: list[str]) -> dict[str, Any]:
    found = OverridesParser.create().parse_overrides(overrides)
    return {str(o.get_key_element()): o.value() for o in found}


def grid_of(text: str, folder: Path, *overrides: str) -> Grid:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return read_grid(path, overrides, ROOT)


def test_there_is_a_file_for_every_question() -> None:
    assert {path.stem for path in SWEEPS} == NAMES
    assert {path.stem for path in EVIDENCE} == {*STUDIES, "control_rates"}


@every_sweep
def test_every_file_says_its_question_and_its_figure(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "?" in first
    assert "Feeds the " in first


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.stem)
def test_the_evidence_is_scored_on_the_same_problems(path: Path) -> None:
    assert path.read_text().startswith("# ")
    for point in points_of(path):
        assert str(point["experiment"]).startswith(("evidence", "ablation_", "control_"))


@every_file
def test_agents_and_multirun_run_the_same_points(path: Path) -> None:
    grid = read_grid(path, (), ROOT)
    commands = [rendered(path, point) for point in points_of(path)]
    start = ["/usr/bin/env", "python", grid.program]
    assert all(command[:3] == start for command in commands)
    theirs = [parsed(command[3:]) for command in commands]
    ours = [parsed(list(point.overrides)) for point in grid.points()]
    assert theirs == [{"logger": "wandb"} | point for point in ours]
    assert len({point.name for point in grid.points()}) == len(ours)


@every_file
def test_every_command_of_an_agent_composes(path: Path) -> None:
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        first, *others = points_of(path)
        changed = [point for point in others if sum(point[k] != first[k] for k in first) == 1]
        for point in [first, *changed]:  # every value, each beside the first ones
            _, _, program, *overrides = rendered(path, point)
            cfg = compose(Path(program).stem, overrides=overrides, return_hydra_config=True)
            choices = cfg.hydra.runtime.choices
            own = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
            OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
            for key, value in point.items():
                found = choices[key] if key in choices else OmegaConf.select(own, key)
                assert found == yaml.safe_load(str(value))


def test_a_level_is_the_setting_of_the_method_that_an_experiment_names() -> None:
    lenient = composed("eval", "experiment=lossy_lenient", "level=0.4")
    assert lenient.verifier.lenience == 0.4
    cascade = composed("eval", "experiment=lossy_cascade_opt", "level=0.4")
    assert (cascade.verifier.rule, cascade.verifier.alpha) == ("opt", 0.4)


@every_sweep
def test_a_point_has_the_folder_that_hydra_gives_it(path: Path, tmp_path: Path) -> None:
    grid = read_grid(path, (), ROOT)
    points = grid.points()
    command = sweep.multirun_command(grid, points, tmp_path)
    settings = [word for word in command if word.startswith("hydra.")]
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        for point in (points[0], points[-1]):
            overrides = [*point.overrides, *settings]
            cfg = compose(grid.config_name, overrides=overrides, return_hydra_config=True)
            assert cfg.hydra.job.override_dirname == point.name
    assert "hydra.sweep.subdir=${hydra.job.override_dirname}" in settings


BAD_FILES = {
    "method: bayes": "method=bayes: only grid can be expanded",
    "method: random": "method=random: only grid can be expanded",
    "methd: grid": "unknown key methd; did you mean method?",
    "program: evaluate.py": "program=evaluate.py: must be one of eval.py, ",
    "run_cap: 3": "run_cap cannot be expanded: it ends a grid early",
    "early_terminate: {type: hyperband}": "early_terminate cannot be expanded",
    "parameters: []": "parameters must be a mapping",
    "command: [a]": "command must hold ${args_no_hyphens}",
    "parameters: {seed: {vales: [0]}}": "parameters.seed: unknown key vales; did you mean value",
    "parameters: {seed: {min: 0, max: 3}}": "parameters.seed: min cannot be expanded: a distrib",
    "parameters: {seed: {distribution: q_uniform, values: [1]}}": "distribution=q_uniform",
    "parameters: {verifier: {parameters: {weight: {value: 1}}}}": "verifier: parameters cannot be",
    "parameters: {seed: {values: []}}": "parameters.seed: values must be a list",
    "parameters: {seed: {values: 3}}": "parameters.seed: values must be a list",
    "parameters: {seed: 3}": "parameters.seed: must be {value: ...} or {values: [...]}",
    "parameters: {seed: {}}": "parameters.seed: give value or values",
    "parameters: {seed: {value: 1, values: [1]}}": "parameters.seed: give value or values",
    "parameters: {name: {value: null}}": "parameters.name: null reaches the script as the text",
    'parameters: {name: {value: "a,b"}}': "Hydra reads a,b as several values",
    'parameters: {name: {value: "a=b=c("}}': "parameters.name: Hydra cannot read name=a=b=c(",
    "parameters: {seed: {values: [0, 0]}}": "the grid has the point seed-0 twice",
    "parameters: {name: {values: [a/../b, c]}}": "name-a/../b: no folder can have this name",
    f"parameters: {{name: {{values: [{'a' * 300}, c]}}}}": "no folder can have this name",
    "[]": "a sweep file is a mapping",
    "a: b: c": "mapping values are not allowed here",
}


@pytest.mark.parametrize(("change", "message"), BAD_FILES.items())
def test_what_cannot_be_expanded_is_refused_by_name(
    tmp_path: Path, change: str, message: str
) -> None:
    key = change.split(":")[0]
    lines = [line for line in EVALUATION.splitlines() if not line.startswith(f"{key}:")]
    if key == "parameters":
        lines = [line for line in lines if not line.startswith("  ")]
    text = change if change in ("[]", "a: b: c") else "\n".join([*lines, change])
    with pytest.raises(InputError) as caught:
        grid_of(text, tmp_path).points()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["program", "method", "parameters"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    content = yaml.safe_load(EVALUATION)
    del content[key]
    with pytest.raises(InputError, match=f"{key} is missing"):
        grid_of(yaml.safe_dump(content), tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.yaml: No such file"):
        read_grid(tmp_path / "no.yaml", (), ROOT)


def test_a_distribution_that_lists_its_values_is_a_grid(tmp_path: Path) -> None:
    listed = EVALUATION.replace("values: [0, 1]", "values: [0, 1], distribution: categorical")
    assert grid_of(listed, tmp_path) == grid_of(EVALUATION, tmp_path)


def test_points_are_the_product_the_last_key_fastest(tmp_path: Path) -> None:
    points = grid_of(EVALUATION, tmp_path).points()
    assert [point.name for point in points] == [
        "seed-0_verifier.weight-0.2",
        "seed-1_verifier.weight-0.2",
        "seed-0_verifier.weight-0.8",
        "seed-1_verifier.weight-0.8",
    ]
    assert points[1].overrides == ("verifier=static", "verifier.weight=0.2", "seed=1")


def test_keys_of_the_command_line_take_the_place_of_the_files(tmp_path: Path) -> None:
    arguments = ("seed=range(2,4)", "verifier.weight=0.5", "model=tiny,qwen", "name=x")
    grid = grid_of(EVALUATION, tmp_path, *arguments, "hydra/launcher=joblib", "hydra.verbose=true")
    assert grid.values == {
        "verifier": ("static",),
        "verifier.weight": ("0.5",),
        "seed": ("2", "3"),
        "model": ("tiny", "qwen"),
        "name": ("x",),
    }
    assert grid.launch == ("hydra/launcher=joblib", "hydra.verbose=true")
    # A point keeps its folder when the command line narrows the file's grid to it.
    assert grid.points()[0].name == "model-tiny_seed-2_verifier.weight-0.5"


def test_a_grid_of_one_point_has_a_folder(tmp_path: Path) -> None:
    text = EVALUATION.replace("values: [0, 1]", "value: 0").replace(
        "values: [0.2, 0.8]", "value: 1"
    )
    grid = grid_of(text, tmp_path)
    (point,) = grid.points()
    assert point.name == "point"
    assert "hydra.sweep.subdir=point" in sweep.multirun_command(grid, [point], tmp_path)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("seed=interval(0,1)", "an interval has no grid"),
        ("~seed", "a sweep can change keys, not delete them"),
        ("hydra.sweep.dir=x", "the sweep sets it; use --output"),
        ("hydra.sweep.subdir=x", "the sweep sets it; use --output"),
        ("seed=(", "seed=("),
        ("seed", "seed"),
        ("model=glob(*)", "model=glob(*)"),
    ],
)
def test_an_argument_that_is_no_grid_is_refused(
    tmp_path: Path, argument: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        grid_of(EVALUATION, tmp_path, argument)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_multirun_is_asked_for_what_is_left(tmp_path: Path) -> None:
    grid = grid_of(EVALUATION, tmp_path)
    points = grid.points()

    def asked(*left: int) -> list[str]:
        command = sweep.multirun_command(grid, [points[i] for i in left], tmp_path)
        assert command[1:3] == [str(ROOT / "eval.py"), "--multirun"]
        return [word for word in command[3:] if not word.startswith("hydra.")]

    assert asked(0, 1, 2, 3) == ["verifier=static", "verifier.weight=0.2,0.8", "seed=0,1"]
    assert asked(2, 3) == ["verifier=static", "verifier.weight=0.8", "seed=0,1"]
    assert asked(1) == ["verifier=static", "verifier.weight=0.2", "seed=1"]
    assert asked(1, 2) == asked(0, 1, 2, 3)  # no product: the rest ends at once in the job


@pytest.mark.parametrize("text", ["a/b", "a b", "it's", r"x\'y", "a=b,c", "\\", "ü", "${x}"])
def test_any_path_survives_the_override_grammar(text: str) -> None:
    (override,) = OverridesParser.create().parse_overrides([f"key={sweep.quoted(Path(text))}"])
    assert override.value() == text


def test_a_folder_with_another_config_stops_the_sweep(tmp_path: Path) -> None:
    grid = grid_of(EVALUATION, tmp_path)
    points = grid.points()
    (first, *_) = sweep.composed(grid, points[:1])
    held = json.loads(json.dumps(OmegaConf.to_container(first, resolve=True)))
    write_manifest(tmp_path / points[0].name, {"status": "finished", "config": held})
    sweep.check_folders(grid, points, tmp_path)
    held["decoding"]["temperature"] = 0.5
    write_manifest(tmp_path / points[0].name, {"status": "finished", "config": held})
    with pytest.raises(InputError, match=r"weight-0\.2: .*another config \(decoding\.temperature"):
        sweep.check_folders(grid, points, tmp_path)
    write_json(tmp_path / points[0].name / "manifest.json", {"schema_version": 10**6})
    with pytest.raises(InputError, match=r"cannot be read: .* schema version 1000000"):
        sweep.check_folders(grid, points, tmp_path)


def run_main(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the command."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # restored afterwards; run_script sets it
    monkeypatch.setattr(config, "_WANTS_TRACE", False)
    monkeypatch.setattr("sys.argv", ["sweep", *arguments])
    with pytest.raises(SystemExit) as stop:
        sweep.main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("decoding.temprature=1", "did you mean decoding.temperature?"),
        ("verifier.wait=1", "did you mean verifier.weight?"),
        ("data=foo", "arithmetic"),
        ("seed=(", "seed=("),
    ],
)
def test_a_key_that_no_script_has_stops_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    argument: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_main(
        monkeypatch, capsys, str(ROOT / "sweeps" / "static_front.yaml"), argument
    )
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_finished_sweep_only_shows_its_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(EVALUATION)
    grid = read_grid(path, ("seed=0",), ROOT)
    run = dict.fromkeys(RUN_COLUMNS)
    for point, cfg in zip(grid.points(), sweep.composed(grid, grid.points()), strict=True):
        content = {"status": "finished", "run": run, "results": {"quality": 0.25}}
        held = OmegaConf.to_container(cfg, resolve=True)
        write_manifest(tmp_path / "runs" / point.name, content | {"config": held})
    monkeypatch.setattr(sweep, "_run", lambda *_: pytest.fail("nothing is left to run"))
    arguments = (str(path), "seed=0", "--output", str(tmp_path / "runs"))
    code, out, err = run_main(monkeypatch, capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "point\tstatus\tquality",
        "seed-0_verifier.weight-0.2\tfinished\t0.25",
        "seed-0_verifier.weight-0.8\tfinished\t0.25",
        f"2 finished; in {tmp_path / 'runs'}",
    ]
    code, _, err = run_main(monkeypatch, capsys, *arguments, "decoding.temperature=0.5")
    assert code == 2
    assert "another config (decoding.temperature)" in err


@pytest.mark.parametrize("name", ["draft_length", "temperature"])
def test_every_point_of_a_sweep_has_a_run_name_of_its_own(name: str) -> None:
    """Points that differ in N or T alone used to share one, and their records were mixed up."""
    grid = read_grid(ROOT / "sweeps" / f"{name}.yaml", ("seed=0,1",), ROOT)
    names = []
    for cfg in sweep.composed(grid, grid.points()):
        weight = cfg.verifier.get("weight")
        verifier = StaticVerifier(0.5 if weight is None else weight)
        sampling = Sampling(cfg.decoding.temperature)
        settings = DecodeSettings(max_new_tokens=8, sampling=sampling)
        decoder = SimpleNamespace(verifier=verifier, settings=settings)
        names.append(run_columns(cfg, decoder, SimpleNamespace(name="task"))["run_name"])
    assert len(set(names)) == len(names) == len(grid.points())


@pytest.fixture
def multirun(monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a job as the point of a multirun in a folder."""
    monkeypatch.setattr(config, "_WANTS_TRACE", False)
    monkeypatch.setattr(config, "_failed_points", [])

    def run(job, cfg, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        state = SimpleNamespace(
            runtime=SimpleNamespace(output_dir=str(folder)), mode=RunMode.MULTIRUN
        )
        monkeypatch.setattr(config.HydraConfig, "get", lambda: state)
        return run_job(job, cfg)

    return run


def count(cfg, folder: Path) -> dict[str, float]:
    """Write the manifest of a finished run, and how often it was run."""
    number = folder / "number.txt"
    number.write_text(str(int(number.read_text()) + 1 if number.is_file() else 1))
    content = {"status": "finished", "config": OmegaConf.to_container(cfg), "results": {"a": 1.0}}
    write_manifest(folder, content)
    return {"a": 1.0}


def test_a_finished_point_is_not_run_again(multirun, tmp_path: Path) -> None:
    cfg = OmegaConf.create({"seed": 1})
    assert multirun(count, cfg, tmp_path / "p") == {"a": 1.0}
    assert multirun(count, cfg, tmp_path / "p") == {"a": 1.0}
    assert (tmp_path / "p" / "number.txt").read_text() == "1"


def test_a_point_does_not_overwrite_another_config(multirun, tmp_path: Path) -> None:
    """A multirun into an older sweep's folder used to replace its runs."""
    multirun(count, OmegaConf.create({"seed": 1}), tmp_path / "p")
    before = {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    assert multirun(count, OmegaConf.create({"seed": 2}), tmp_path / "p") is None
    (message,) = config._failed_points
    assert "holds a run of another config (seed)" in message
    assert {path.name: path.read_bytes() for path in (tmp_path / "p").iterdir()} == before


def test_a_point_that_fails_can_be_run_again(multirun, tmp_path: Path) -> None:
    def fail(cfg, folder: Path) -> None:
        write_manifest(folder, {"status": "running", "config": {"seed": 1}})
        raise ZeroDivisionError("by\nzero")

    cfg = OmegaConf.create({"seed": 1})
    with pytest.raises(ZeroDivisionError):
        multirun(fail, cfg, tmp_path / "p")
    state = read_state(tmp_path / "p")
    assert (state.status, state.error) == ("failed", "ZeroDivisionError: by; zero")
    assert read_manifest(tmp_path / "p")["status"] == "failed"
    multirun(count, cfg, tmp_path / "p")
    state = read_state(tmp_path / "p")
    assert (state.status, state.error) == ("finished", None)
    assert not (tmp_path / "p" / "error.txt").exists()


def test_training_goes_on_in_its_folder(multirun, tmp_path: Path) -> None:
    seen = []

    def note(cfg, folder: Path) -> None:
        seen.append(cfg.resume)
        write_manifest(folder, {"status": "running", "config": {"seed": 1, "resume": cfg.resume}})

    cfg = {"seed": 1, "resume": None}
    for _ in range(2):
        multirun(note, OmegaConf.create(cfg), tmp_path / "p")
    assert seen == [None, str(tmp_path / "p")]


ALIKE = {"draft_length", "temperature"}  # train as diversed_lambda does
SMALL = {"eval": SMALL_EVALUATION, "train": SMALL_TRAINING}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a head as it is before training."""
    folder = tmp_path_factory.mktemp("heads") / "head"
    new_head(
        load_tiny_pair(), kind="linear", width=1, uses_features=False, initial_weight=0.9
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in ALIKE else [])
        for path in SWEEPS
    ],
)
def test_a_point_of_every_sweep_runs_on_the_tiny_pair(
    path: Path, head: Path, tmp_path: Path
) -> None:
    point = points_of(path)[-1]
    if path.stem == "transfer":
        point |= {"model": "tiny", "data": "arithmetic", "verifier.checkpoint": str(head)}
    _, _, program, *overrides = rendered(path, point)
    name = Path(program).stem
    job = {"eval": app.evaluate, "train": app.train}[name]
    overrides = [word for word in overrides if word != "logger=wandb"]
    numbers = job(composed(name, *overrides, *SMALL[name]), tmp_path)
    assert numbers["num_errors"] == 0
    assert read_manifest(tmp_path)["status"] == "finished"
    shutil.rmtree(tmp_path)


def test_records_may_be_parquet(tmp_path: Path) -> None:
    tables = []
    for form in ("jsonl", "parquet"):
        cfg = composed("eval", *SMALL_DATA, "evaluation.num_prompts=2", "decoding.max_new_tokens=8")
        cfg.evaluation.records_format = form
        app.evaluate(cfg, tmp_path / form)
        assert (tmp_path / form / f"records.{form}").is_file()
        tables.append(read_records(tmp_path / form).drop(columns="seconds"))
    assert tables[0].equals(tables[1])
