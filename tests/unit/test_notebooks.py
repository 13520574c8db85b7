"""The notebooks of `analysis/`: how they are built, and what they draw from ten answers."""

import ast
import inspect
import io
import json
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from diversed import collect
from diversed.figures import (
    acceptance,
    front,
    positions,
    prices,
    study_tables,
    tables,
    training,
    weights,
)
from diversed.figures.checks import MissingRecords
from diversed.notebooks import Shown, open_records, show
from diversed.notebooks.__main__ import main, report
from diversed.notebooks.data import (
    ANALYSIS,
    DEFAULT_RECORDS,
    RECORDS_VARIABLE,
    RecordSet,
)
from diversed.notebooks.execution import NotebookError, Outcome, execute_notebook
from diversed.notebooks.showing import OUT_VARIABLE
from diversed.notebooks.times import relative_times
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import RecordsError, write_manifest, write_records, write_trace

NOTEBOOKS = sorted(ANALYSIS.glob("*.ipynb"))
EVIDENCE = ANALYSIS / "08_evidence.ipynb"
MAX_CELLS = 12
QUESTIONS = [
    *("01_pareto", "02_acceptance_tables", "03_position_decay", "04_wall_clock"),
    *("05_transfer", "06_weights", "07_training", "08_evidence"),
]
OF_THE_EVIDENCE = ["front", "groups", "rivals", "controls", "dial"]
FROM_THE_DEMO = [
    *("front", "front_distances", "main_table", "accepted_per_block", "paper_comparison"),
    *("survival", "position_acceptance", "time_front", "acceptance_time", "results_table"),
    *("weight_distribution", "weight_by_class", "weight_tv", "prices", "training_curves"),
]
BEYOND_IT = ["temperature_table", "draft_length_table", "transfer_table", "draft_table"]
BLOCK = (("accepted", 0.9, " 4"), ("rejected", 0.4, " so"), ("recovered", np.nan, "+"))


def write_run(
    folder: Path,
    method: str,
    qualities: tuple[float, float],
    acceptance_rate: float | None,
    *,
    config: dict[str, Any] | None = None,
    results: dict[str, Any] | None = None,
    seconds: float = 0.5,
    **settings: Any,
) -> Path:
    """Write a run of two answers of four tokens each, N = 2, with its trace."""
    run = dict.fromkeys(RUN_COLUMNS) | {
        "run_name": folder.name,
        "method": method,
        "model": "tiny",
        "data": "arithmetic",
        "split": "test",
        "seed": 0,
        "bonus": "verifier",
        "setting": "",
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "draft_length": None if acceptance_rate is None else 2,
        "max_new_tokens": 8,
        "batch_size": 64,
    }
    manifest = {"run": run | settings, "status": "finished", "config": config or {}}
    pair = {"target": {"name": "large"}, "draft": {"name": "small"}}
    write_manifest(folder, manifest | {"results": results or {}, "pair": pair, "device": "cpu"})
    drafts = 0 if acceptance_rate is None else 4
    rows = [
        dict.fromkeys(ROW_COLUMNS)
        | {
            "prompt_id": f"p{index}",
            "sample": 0,
            "prompt": "?",
            "is_prompt_cut": False,
            "text": "4 + 4",
            "quality": quality,
            "end_reason": "eos",
            "is_truncated": False,
            "num_tokens": 4,
            "num_drafted": drafts,
            "num_judged": drafts,
            "num_accepted": drafts // 2,
            "num_recovered": drafts // 2,
            "num_bonus": 0 if drafts else 4,
            "num_blocks": 2 if drafts else 4,
            "num_draft_calls": drafts,
            "expected_acceptance": acceptance_rate and acceptance_rate + 0.02 * index,
            "bias": 0.1 if drafts else None,
            "seconds": seconds,
        }
        for index, quality in enumerate(qualities)
    ]
    write_records(folder, rows)
    write_trace(folder, pd.DataFrame(list(trace_rows(method)), columns=list(TRACE_COLUMNS)))
    return folder


def trace_rows(method: str):
    for prompt in ("p0", "p1"):
        for block in (0, 1):
            for place, (status, accept, token) in enumerate(BLOCK):
                is_plain = method == "autoregressive"
                yield dict.fromkeys(TRACE_COLUMNS, 0) | {
                    "prompt_id": prompt,
                    "block": block,
                    "block_position": place,
                    "token": token,
                    "status": "bonus" if is_plain else status,
                    "accept_prob": np.nan if is_plain else accept,
                    "tv_distance": 0.3,
                    "target_prob": 0.4,
                    "draft_prob": 0.3,
                    "target_weight": {"diversed": 0.8, "static": 0.5}.get(method, np.nan),
                }


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder as the demo leaves it: five runs, ten answers, timed, with curves."""
    folder = tmp_path_factory.mktemp("demo")
    runs = folder / "runs"
    write_run(runs / "plain", "autoregressive", (1.0, 1.0), None)
    write_run(runs / "exact", "lossless", (1.0, 1.0), 0.5)
    write_run(runs / "half", "static", (1.0, 0.0), 0.7, target_weight=0.5)
    write_run(runs / "none", "static", (0.0, 0.0), 0.9, target_weight=0.0)
    numbers = {"quality": 0.5, "acceptance": 0.8, "objective": 1.7}
    validation = [{"rollout": step, **numbers} for step in (1, 2)]
    results = {"best_rollout": 1, "validation": validation}
    head = write_run(
        runs / "head",
        "diversed",
        (1.0, 1.0),
        0.8,
        acceptance_weight=1.5,
        dial=0.0,
        config={"objective": {"acceptance_reduction": "mean"}},
        results=results,
    )
    write_metrics(head / "metrics", {1: 0.9, 2: 0.8, 3: 0.7})
    times = {"plain": 1.0, "exact": 0.8, "half": 0.6, "none": 0.5, "head": 0.5}
    rows = [(name, prompt, 10, time) for name, time in times.items() for prompt in (0, 1)]
    columns = ["run_name", "prompt", "num_tokens", "seconds"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "speeds.csv", index=False)
    return folder


def write_metrics(folder: Path, rewards: dict[int, float]) -> None:
    names = ("reward", "acceptance", "objective", "mean_w", "w_below_0.05_frac")
    rows = [
        {"step": step} | {f"train/{name}": reward for name in (*names, "w_above_0.95_frac")}
        for step, reward in rewards.items()
    ]
    folder.mkdir(parents=True)
    table = pd.DataFrame([*rows, {"step": 4, "test/quality": 1.0}])
    table.to_csv(folder / "metrics.csv", index=False)


def code_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def shown_names(path: Path) -> list[str]:
    calls = [ast.parse(source).body[-1].value for source in code_of(path)[1:]]
    return [call.args[0].value for call in calls]


def test_there_is_one_notebook_for_each_question() -> None:
    assert [path.stem for path in NOTEBOOKS] == QUESTIONS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_stripped(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= MAX_CELLS
    assert notebook.metadata.keys() <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds == ["markdown", "code"] * (len(kinds) // 2)  # prose before every cell of code


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_only_import_open_and_show(path: Path) -> None:
    setup, *rest = (ast.parse(source) for source in code_of(path))
    allowed = (ast.ImportFrom, ast.Assign)
    assert all(isinstance(node, allowed) for node in setup.body)
    modules = [node.module for node in setup.body if isinstance(node, ast.ImportFrom)]
    assert all(name.split(".")[0] == "diversed" for name in modules)
    for tree in rest:
        (statement,) = tree.body
        assert isinstance(statement, ast.Expr)
        call = statement.value
        assert isinstance(call, ast.Call)
        assert call.func.id == "show"
    nodes = [type(node) for tree in (setup, *rest) for node in ast.walk(tree)]
    loops = (ast.For, ast.While, ast.comprehension, ast.Lambda, ast.FunctionDef, ast.ClassDef)
    assert not set(nodes) & {*loops, ast.Try, ast.With, ast.AsyncFunctionDef}


def test_every_figure_and_table_is_shown_once() -> None:
    names = Counter(name for path in NOTEBOOKS for name in shown_names(path))
    of_evidence = {f"evidence_{name}" for name in OF_THE_EVIDENCE}
    assert set(names) == {*FROM_THE_DEMO, *BEYOND_IT, *of_evidence}
    assert set(names.values()) == {1}
    modules = (acceptance, front, positions, prices, study_tables, tables, training, weights)
    made = {
        name
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
        if name.startswith("plot_") or name.endswith("_table")
    }
    used = {
        call.args[1].id
        for path in set(NOTEBOOKS) - {EVIDENCE}
        for call in (ast.parse(source).body[-1].value for source in code_of(path)[1:])
    }
    assert used == made


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that runs a notebook's code on some records, without a kernel."""

    def run(path: Path, folder: Path) -> list[Shown]:
        monkeypatch.setenv(RECORDS_VARIABLE, str(folder))
        monkeypatch.setenv(OUT_VARIABLE, str(tmp_path / "out"))
        setup, *calls = code_of(path)
        lines = [f"shown_{place} = {source}" for place, source in enumerate(calls)]
        file = tmp_path / f"{path.stem}.py"
        file.write_text("\n".join([setup, *lines]))
        scope = runpy.run_path(str(file))
        return [scope[f"shown_{place}"] for place in range(len(calls))]

    return run


def test_all_that_the_demo_has_records_for_is_drawn(shown, demo: Path, tmp_path: Path) -> None:
    notebooks = sorted(set(NOTEBOOKS) - {EVIDENCE})
    outcomes = [each for path in notebooks for each in shown(path, demo)]
    drawn = [each.name for each in outcomes if each.kind != "skipped"]
    assert sorted(drawn) == sorted(FROM_THE_DEMO)
    assert sum(each.kind == "figure" for each in outcomes) == 11
    skipped = {each.name: each.reason for each in outcomes if each.kind == "skipped"}
    assert sorted(skipped) == sorted(BEYOND_IT)
    assert all("python eval.py" in reason for reason in skipped.values())
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"front.png", "front.svg", "front.pdf", "main_table.md", "main_table.tex"} <= files
    assert not [name for name in files if name.split(".")[0] in skipped]


def test_the_evidence_is_drawn_from_the_committed_records(shown, demo: Path) -> None:
    outcomes = shown(EVIDENCE, demo)
    assert [each.name for each in outcomes] == [f"evidence_{name}" for name in OF_THE_EVIDENCE]
    assert [each.kind for each in outcomes] == ["figure", "table", "table", "table", "figure"]


def test_more_records_draw_what_the_demo_lacks(shown, demo: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    for place, (settings, draft) in enumerate(
        [
            ({"temperature": 0.1}, None),
            ({"draft_length": 3}, None),
            ({"model": "tiny_finetuned"}, "runs/tuned"),
        ]
    ):
        config = {"model": {"draft": {"path": draft}}}
        write_run(more / f"exact{place}", "lossless", (1.0, 1.0), 0.5, config=config, **settings)
    config = {"verifier": {"checkpoint": str(demo / "runs" / "head")}}
    settings = {"acceptance_weight": 1.5, "dial": 0.0, "data": "gsm8k"}
    write_run(more / "away", "diversed", (1.0, 0.0), 0.8, config=config, **settings)
    write_run(more / "home", "lossless", (1.0, 0.0), 0.8)
    names = ("02_acceptance_tables", "05_transfer")
    outcomes = [each for name in names for each in shown(ANALYSIS / f"{name}.ipynb", more)]
    assert {each.name for each in outcomes if each.kind == "table"} >= set(BEYOND_IT)


def test_one_notebook_runs_in_a_kernel(demo: Path, tmp_path: Path) -> None:
    source = ANALYSIS / "07_training.ipynb"
    before = source.read_bytes()
    outcomes = execute_notebook(source, str(demo), tmp_path / "out")
    assert outcomes == [Outcome("07_training", "training_curves", "figure", "")]
    assert (tmp_path / "out" / "training_curves.png").read_bytes().startswith(b"\x89PNG")
    executed = nbformat.read(tmp_path / "out" / source.name, as_version=4)
    assert executed.cells[-1].outputs[0].data["image/png"]
    assert source.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_in_a_kernel(path: Path, demo: Path, tmp_path: Path) -> None:
    outcomes = execute_notebook(path, str(demo), tmp_path / "out")
    assert [each.name for each in outcomes] == shown_names(path)
    drawn = {each.name for each in outcomes if each.kind != "skipped"}
    committed = shown_names(EVIDENCE)  # drawn from records of their own
    assert drawn == set(shown_names(path)) & {*FROM_THE_DEMO, *committed}


def test_a_cell_that_fails_is_named_with_its_notebook(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    with pytest.raises(NotebookError) as caught:
        execute_notebook(tmp_path / "broken.ipynb", "", tmp_path / "out")
    assert str(caught.value) == "broken.ipynb: ZeroDivisionError: division by zero"
    executed = nbformat.read(tmp_path / "out" / "broken.ipynb", as_version=4)
    assert executed.cells[0].outputs[0].ename == "ZeroDivisionError"


def test_the_command_says_what_was_skipped_and_why() -> None:
    outcomes = [
        Outcome("01_pareto", "front", "figure", ""),
        Outcome("02_acceptance_tables", "main_table", "table", ""),
        Outcome("05_transfer", "transfer_table", "skipped", "needs a head on other data"),
    ]
    screen = io.StringIO()
    report(outcomes, Path("analysis/out"), Console(file=screen, width=80))
    assert screen.getvalue().strip().splitlines() == [
        "1 figures and 1 tables in analysis/out",
        "1 skipped:",
        "  transfer_table (05_transfer) needs a head on other data",
    ]


def test_the_command_ends_before_any_kernel_where_there_are_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["notebooks", "--records", str(tmp_path), "--out", "x"])
    with pytest.raises(SystemExit, match=f"RecordsError: {tmp_path}: no run's records below it"):
        main()
    assert list(tmp_path.iterdir()) == []


def test_records_come_from_the_variable_or_the_demo(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORDS_VARIABLE, str(demo))
    assert open_records().folder == demo
    assert DEFAULT_RECORDS.parts[-2:] == ("outputs", "demo")


def test_what_records_lack_is_an_empty_table_with_its_columns(tmp_path: Path, demo: Path) -> None:
    write_run(tmp_path / "plain", "autoregressive", (1.0, 0.0), None)
    (tmp_path / "plain" / "trace.parquet").unlink()
    few, full = RecordSet(tmp_path), RecordSet(demo)
    for name in ("traces", "training", "speeds", "bands", "distances"):
        assert getattr(few, name).empty
        assert set(getattr(few, name).columns) == set(getattr(full, name).columns), name
    assert len(few.records) == 2
    assert few.summary["relative_time"].tolist() == [1.0]


def test_training_curves_count_the_rollouts_that_the_head_had_seen(demo: Path) -> None:
    training_rows = RecordSet(demo).training
    train = training_rows[training_rows["part"] == "train"]
    assert train["rollout"].tolist() == [0, 1, 2]
    assert train["reward"].tolist() == [0.9, 0.8, 0.7]
    validation = training_rows[training_rows["part"] == "validation"]
    assert validation["expected_acceptance"].tolist() == [0.8, 0.8]
    assert set(training_rows["best_rollout"]) == {1}


def test_validations_of_a_summed_objective_show_no_mean_acceptance(tmp_path: Path) -> None:
    results = {"validation": [{"rollout": 1, "quality": 1, "acceptance": 40, "objective": 61}]}
    config = {"objective": {"acceptance_reduction": "sum"}}
    write_run(tmp_path / "head", "diversed", (1.0, 1.0), 0.8, config=config, results=results)
    (row,) = RecordSet(tmp_path).training.to_dict("records")
    assert np.isnan(row["expected_acceptance"])
    assert row["objective"] == 61


def test_runs_that_share_a_name_are_told_apart(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_run(tmp_path / part / "exact", "lossless", (1.0, 0.0), 0.5)
    write_run(tmp_path / "half", "static", (1.0, 0.0), 0.7, target_weight=0.5)
    names = ["exact (a/exact)", "exact (b/exact)", "half"]
    runs = RecordSet(tmp_path)
    assert runs.summary["run_name"].tolist() == names
    assert runs.summary["num_prompts"].tolist() == [2, 2, 2]
    assert runs.traces["run_name"].unique().tolist() == names


def test_a_heads_origin_is_found_where_it_lies_now(demo: Path, tmp_path: Path) -> None:
    settings = {"acceptance_weight": 1.5, "data": "gsm8k"}
    checkpoints = {
        "run": demo / "runs" / "head",
        "folder": demo / "runs" / "head" / "head",
        "moved": "elsewhere/runs/home",
        "hub": "me/my-head",
        "new": None,
    }
    write_run(
        tmp_path / "runs" / "home", "diversed", (1.0, 1.0), 0.8, config={"objective": {}}, data="x"
    )
    for name, checkpoint in checkpoints.items():
        config = {"verifier": {"checkpoint": checkpoint and str(checkpoint)}}
        write_run(tmp_path / name, "diversed", (1.0, 1.0), 0.8, config=config, **settings)
    summary = RecordSet(tmp_path).summary.set_index("run_name")
    origins = summary["train_data"].where(summary["train_data"].notna(), None).to_dict()
    known = {"run": "arithmetic", "folder": "arithmetic", "moved": "x", "home": "x"}
    assert origins == known | {"hub": None, "new": None}


def test_times_are_those_at_batch_1_where_they_were_taken(demo: Path) -> None:
    summary = RecordSet(demo).summary.set_index("run_name")
    assert summary["relative_time"].to_dict() == pytest.approx(
        {"plain": 1.0, "exact": 0.8, "half": 0.6, "none": 0.5, "head": 0.5}
    )
    assert summary.loc["head", "relative_time_low"] == pytest.approx(0.5)


def runs_and_answers(**plain: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    shared = {"model": "tiny", "data": "d", "split": "test", "temperature": 1.0, "top_k": 0}
    shared |= {"top_p": 1.0, "batch_size": 64, "device": "cpu"}
    table = pd.DataFrame(
        [
            shared | {"run_name": "plain", "method": "autoregressive"} | plain,
            shared | {"run_name": "exact", "method": "lossless"},
        ]
    )
    answers = [("plain", "a", 10, 2.0), ("plain", "b", 10, 4.0), ("exact", "a", 5, 0.5)]
    columns = ["run_name", "prompt_id", "num_tokens", "seconds"]
    return table, pd.DataFrame(answers, columns=columns)


NO_SPEEDS = pd.DataFrame(columns=["run_name", "prompt", "num_tokens", "seconds"])


def test_otherwise_times_are_those_of_shared_prompts_without_an_interval() -> None:
    table, answers = runs_and_answers()
    times = relative_times(table, answers, NO_SPEEDS).set_index("run_name")
    assert times["relative_time"].to_dict() == {"plain": 1.0, "exact": 0.5}  # prompt a alone
    assert times["relative_time_low"].isna().all()
    single = table.assign(batch_size=1)
    assert relative_times(single, answers, NO_SPEEDS)["relative_time_low"].notna().all()


@pytest.mark.parametrize("change", [{"device": "gpu"}, {"temperature": 0.0}, {"batch_size": 1}])
def test_runs_of_other_settings_are_not_compared(change: dict[str, Any]) -> None:
    times = relative_times(*runs_and_answers(**change), NO_SPEEDS).set_index("run_name")
    assert times["relative_time"].notna().to_dict() == {"plain": True, "exact": False}


def test_runs_that_were_not_timed_beside_the_others_have_no_time() -> None:
    table, answers = runs_and_answers()
    speeds = pd.DataFrame([("plain", 0, 10, 1.0)], columns=NO_SPEEDS.columns)
    times = relative_times(table, answers, speeds).set_index("run_name")
    assert times["relative_time"].notna().to_dict() == {"plain": True, "exact": False}


def test_fronts_that_cannot_be_measured_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run(tmp_path / "exact", "lossless", (1.0, 1.0), 0.5)
    write_run(tmp_path / "half", "static", (1.0, 1.0), 0.7, target_weight=0.5)
    rows = (tmp_path / "half" / "records.jsonl").read_text().splitlines()
    (tmp_path / "half" / "records.jsonl").write_text(rows[0] + "\n")
    assert RecordSet(tmp_path).bands.empty
    assert "no front of model=tiny" in caplog.text
    assert "not scored on the same prompts" in caplog.text


def test_a_tracked_project_has_summaries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = dict.fromkeys(RUN_COLUMNS) | {"run_name": "exact", "method": "lossless"}
    rows = [
        {"status": "finished", "quality": 0.9, "acceptance_rate": 0.5} | run,
        {"status": "failed"} | run,
    ]
    monkeypatch.setattr(collect, "wandb_rows", lambda project: rows if project == "me/p" else [])
    tracked = open_records("wandb:me/p")
    (row,) = tracked.summary.to_dict("records")
    assert (row["quality"], row["acceptance_rate"]) == (0.9, 0.5)
    assert np.isnan(row["relative_time"])
    assert tables.main_table(tracked.summary)["method"].tolist() == ["lossless"]
    for name in ("records", "traces", "training", "speeds", "bands", "distances"):
        assert getattr(tracked, name).empty, name


def drawn() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots()
    return figure


def missing() -> Figure:
    raise MissingRecords("needs more")


def test_show_keeps_files_only_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OUT_VARIABLE, raising=False)
    assert show("front", drawn).files == ()
    monkeypatch.setenv(OUT_VARIABLE, str(tmp_path / "out"))
    assert [path.name for path in show("front", drawn).files] == [
        *("front.png", "front.svg", "front.pdf"),
    ]
    table = show("numbers", lambda: pd.DataFrame({"λ": ["1"]}))
    assert [path.read_text() for path in table.files] == [
        "| λ |\n| --- |\n| 1 |\n",
        "\\begin{tabular}{l}\n\\toprule\n$\\lambda$ \\\\\n\\midrule\n1 \\\\\n\\bottomrule\n"
        "\\end{tabular}\n",
        "λ\n1\n",
    ]


def test_a_skipped_figure_leaves_no_older_one_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUT_VARIABLE, str(tmp_path))
    show("front", drawn)
    skipped = show("front", missing)
    assert (skipped.kind, skipped.reason) == ("skipped", "needs more")
    assert list(tmp_path.iterdir()) == []


def test_jupyter_is_given_a_picture_a_table_or_the_reason() -> None:
    bundle, metadata = show("front", drawn)._repr_mimebundle_()
    assert bundle.keys() == {"image/png", "text/plain"}
    assert metadata["diversed"]["kind"] == "figure"
    assert json.dumps([bundle, metadata])
    bundle, _ = show("numbers", lambda: pd.DataFrame({"w": ["<b>"]}))._repr_mimebundle_()
    assert "&lt;b&gt;" in bundle["text/html"]
    bundle, metadata = show("front", missing)._repr_mimebundle_()
    assert bundle == {"text/plain": "skipped front: needs more"}
    assert metadata["diversed"]["reason"] == "needs more"


def test_other_errors_are_not_hidden(demo: Path) -> None:
    with pytest.raises(ValueError, match="lacks the columns") as caught:
        show("front", front.plot_front, pd.DataFrame({"method": ["static"]}))
    assert not isinstance(caught.value, MissingRecords)


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match=f"{tmp_path}: no run's records below it"):
        open_records(tmp_path)


def test_the_papers_numbers_have_their_source_and_known_names() -> None:
    paper = open_records("wandb:nobody/nothing").paper
    assert set(paper["source"]) == {"arXiv:2604.07622"}
    assert paper["read_from"].notna().all()
    assert len(paper) == 2 * 2 * 3 * 3 + 2 * 6 + 1  # pairs, temperatures, methods, data; transfer
    assert set(paper["method"]) == {"lossless", "diversed", "static"}
    conf = ANALYSIS.parent / "conf"
    for column, group in (("model", "model"), ("data", "data"), ("train_data", "data")):
        known = {path.stem for path in (conf / group).glob("*.yaml")}
        assert set(paper[column].dropna()) <= known
    rates = paper["acceptance_percent"]
    assert ((rates > 1) & (rates < 100)).all()
    head = paper[(paper["method"] == "diversed") & (paper["model"] == "llama")]
    assert 72.61 in head.loc[head["data"] == "gsm8k", "acceptance_percent"].tolist()
