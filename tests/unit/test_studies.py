"""Small records that are shared, and the tables and figures of the evidence drawn from them."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from diversed import evidence
from diversed.evaluation.evidence import measure_groups
from diversed.figures.checks import MissingRecords
from diversed.notebooks import open_records
from diversed.notebooks.evidence import Evidence
from diversed.notebooks.showing import OUT_VARIABLE
from diversed.publish import TEXTS, main, publish, without_paths
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import (
    read_manifest,
    read_records,
    read_trace,
    write_manifest,
    write_records,
    write_trace,
)

NUM_PROMPTS = 60
COUNTS = {
    **{"num_tokens": 10, "num_drafted": 10, "num_judged": 8, "num_accepted": 6, "num_blocks": 4},
    **{"num_recovered": 2, "num_bonus": 2, "num_draft_calls": 12},
}
STATIC = {0.0: (1.0, 0.3), 0.5: (0.85, 0.45), 1.0: (0.7, 0.95)}


def write_run(folder: Path, method: str, acceptance: float, quality: float, seed=0, **columns):
    """Write a finished run of 60 answers with noise of its own."""
    name = f"tiny-{folder.name}-seed{seed}"
    run = dict.fromkeys(RUN_COLUMNS) | {"run_name": name, "method": method, "seed": seed}
    run |= {"model": "tiny", "data": "arithmetic", "split": "test", "setting": "", "dial": None}
    run |= {"draft_length": 5, "temperature": 1.0, "top_k": 0, "top_p": 1.0} | columns
    write_manifest(folder, {"run": run, "status": "finished", "config": {}, "results": {}})
    generator = np.random.default_rng([seed, len(folder.name)])
    rows = [
        dict.fromkeys(ROW_COLUMNS)
        | COUNTS
        | {"prompt_id": f"p{index}", "sample": 0, "prompt": "?", "text": "4", "answer": "4"}
        | {"reference": "4", "is_prompt_cut": False, "is_truncated": False, "end_reason": "eos"}
        | {"expected_acceptance": min(1.0, acceptance + generator.normal(scale=0.01))}
        | {"quality": float(generator.random() < quality), "bias": 0.1, "seconds": 1 / 3}
        for index in range(NUM_PROMPTS)
    ]
    write_records(folder, rows)
    return folder


@pytest.fixture(scope="module")
def studies(tmp_path_factory) -> Path:
    """Return a folder with a static front, heads, a control, a dial and a rule."""
    root = tmp_path_factory.mktemp("evidence")
    for weight, point in STATIC.items():
        write_run(root / "static" / f"w{weight}", "static", *point, target_weight=weight)
    for weight in (0.5, 1.5):
        for seed in (0, 1):
            options = {"seed": seed, "acceptance_weight": weight}
            name = f"lambda{weight}"
            write_run(root / "heads" / f"{seed}" / name, "diversed", 0.9, 0.9, **options)
            write_run(root / "controls" / f"{seed}" / name, "prompt_head", 0.75, 0.8, **options)
    write_run(root / "heads_mlp" / "a", "diversed", 0.93, 0.9, acceptance_weight=1.5)
    for dial in (-2, 2):
        columns = {"acceptance_weight": 1.5, "dial": dial}
        write_run(root / "dial" / f"dial{dial}", "diversed", 0.9 - 0.05 * dial, 0.8, **columns)
    write_run(root / "rules" / "digits", "token_rule", 0.95, 0.7, setting="classes=digit")
    return root


@pytest.mark.parametrize(
    ("text", "published"),
    [
        ("/home/me/models/target", "target"),
        ("data.path=/home/me/mbpp.jsonl", "data.path=mbpp.jsonl"),
        ("hydra.run.dir=/runs", "hydra.run.dir=runs"),
        ("verifier.checkpoint=[/a/b,/c/d]", "verifier.checkpoint=[b,d]"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("outputs/evidence/static", "outputs/evidence/static"),
        ("accepted / drafted", "accepted / drafted"),
    ],
)
def test_published_manifests_hold_no_absolute_path(text, published):
    assert without_paths({"command": [text], "pair": {"draft": text}, "n": 1.5, "none": None}) == {
        "command": [published],
        "pair": {"draft": published},
        "n": 1.5,
        "none": None,
    }


class TestPublished:
    def test_small_records_are_the_run_without_its_texts(self, studies, tmp_path, capsys):
        sys.argv = ["publish", str(studies), str(tmp_path / "small")]
        main()
        assert capsys.readouterr().out == f"15 runs in {tmp_path / 'small'}\n"
        place = Path("heads") / "1" / "lambda1.5"
        small, whole = (read_records(root / place) for root in (tmp_path / "small", studies))
        assert small[list(TEXTS)].isna().all(axis=None)
        same = [name for name in whole.columns if name not in TEXTS]
        pd.testing.assert_frame_equal(
            small[same].astype(object), whole[same].astype(object), rtol=1e-6, check_dtype=False
        )
        assert [path.name for path in sorted((tmp_path / "small" / place).iterdir())] == [
            "manifest.json",
            "records.parquet",
        ]

    def test_a_head_and_its_curves_come_along_a_trace_does_not(self, tmp_path):
        folder = write_run(tmp_path / "from" / "a", "diversed", 0.9, 0.9)
        for name in ("head/config.json", "metrics/metrics.csv", "trace.parquet"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        assert publish(tmp_path / "from", tmp_path / "to") == 1
        found = {str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*.*")}
        assert found == {
            *("a/manifest.json", "a/records.parquet", "a/head/config.json"),
            "a/metrics/metrics.csv",
        }

    def test_a_trace_comes_along_where_it_is_asked_for(self, tmp_path):
        whole = pd.DataFrame(
            [dict.fromkeys(TRACE_COLUMNS, 1) | {"token": " x", "tv_distance": 0.1}]
        )
        with_one = write_run(tmp_path / "from" / "a", "static", 0.9, 0.9)
        write_run(tmp_path / "from" / "b", "static", 0.9, 0.9)
        write_trace(with_one, whole)
        assert publish(tmp_path / "from", tmp_path / "to", copies_traces=True) == 2
        small = read_trace(tmp_path / "to" / "a")
        pd.testing.assert_frame_equal(small, whole, check_dtype=False, rtol=1e-6)
        assert small["tv_distance"].dtype == np.float32
        assert not (tmp_path / "to" / "b" / "trace.parquet").exists()

    def test_what_a_head_was_trained_on_is_told_though_the_path_to_it_is_cut(self, tmp_path):
        home = write_run(tmp_path / "elsewhere" / "head", "diversed", 0.9, 0.9, data="mbpp")
        away = write_run(tmp_path / "from" / "head", "diversed", 0.9, 0.9, data="humaneval")
        manifest = read_manifest(away) | {"config": {"verifier": {"checkpoint": str(home)}}}
        write_manifest(away, manifest)
        publish(tmp_path / "from", tmp_path / "to")
        small = read_manifest(tmp_path / "to" / "head")
        assert small["config"]["verifier"]["checkpoint"] == "head"
        assert small["head_run"] == read_manifest(home)["run"]
        assert open_records(tmp_path / "to").summary["train_data"].tolist() == ["mbpp"]

    def test_what_is_not_finished_is_named_and_nothing_is_written(self, tmp_path, capsys):
        write_run(tmp_path / "from" / "a", "static", 0.9, 0.9)
        broken = tmp_path / "from" / "b"
        write_manifest(broken, {"run": {}, "status": "killed", "config": {}})
        sys.argv = ["publish", str(tmp_path / "from"), str(tmp_path / "to")]
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert capsys.readouterr().err == f"{broken} has not finished: finish the runs first\n"
        assert not (tmp_path / "to").exists()
        sys.argv[1] = str(tmp_path / "to")
        with pytest.raises(SystemExit):
            main()
        assert "no run below" in capsys.readouterr().err


class TestEvidence:
    def test_every_group_of_every_study_is_measured(self, studies):
        found = Evidence(studies)
        heads = found.measured[found.measured["study"] == "heads"]
        assert heads["group"].tolist() == ["tiny-lambda0.5", "tiny-lambda1.5"]
        assert heads["num_heads"].tolist() == [2, 2]
        records = open_records(studies / "heads").records
        own = records[records["acceptance_weight"] == 1.5]
        wanted = measure_groups({"x": own}, open_records(studies / "static").records).iloc[0]
        assert heads.iloc[1][wanted.index[1:]].to_dict() == pytest.approx(wanted[1:].to_dict())
        counts = found.measured["study"].value_counts().to_dict()
        assert counts == {
            "heads": 2,
            "controls": 2,
            "dial": 2,
            "heads_mlp": 1,
            "rules": 1,
            "coin": 3,
        }

    def test_coins_between_the_ends_are_measured_too(self, studies):
        coins = Evidence(studies).measured.query("study == 'coin'")
        assert coins["group"].tolist() == ["coin-0.25", "coin-0.5", "coin-0.75"]
        assert (coins["quality_above_hull"].abs() < 0.1).all()

    def test_heads_are_compared_with_the_controls_of_their_lambda(self, studies):
        controls = Evidence(studies).controls
        assert controls["acceptance_weight"].tolist() == [0.5, 1.5]
        assert (controls["objective_gain_low"] > 0).all()

    def test_heads_are_compared_with_the_best_rule_of_each_family(self, studies):
        rivals = Evidence(studies).rivals
        assert rivals["family"].tolist() == ["token_rule"] * 3
        assert rivals["study"].tolist() == ["heads", "heads", "heads_mlp"]
        assert rivals["best"].unique().tolist() == ["tiny-digits"]

    def test_figures_and_tables_are_written(self, studies, tmp_path, monkeypatch, capsys):
        monkeypatch.setenv(OUT_VARIABLE, "")
        monkeypatch.setattr(evidence, "DRAWN_FOLDER", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["evidence", "--show", "--output", str(studies)])
        with pytest.raises(SystemExit) as stop:
            evidence.main()
        assert stop.value.code == 0
        names = {path.stem for path in tmp_path.iterdir()}
        tables = ("groups", "rivals", "controls")
        assert names == {f"evidence_{what}" for what in ("front", "dial", *tables)}
        assert "tiny-lambda1.5" in capsys.readouterr().out
        table = pd.read_csv(tmp_path / "evidence_groups.csv")
        assert len(table) == 11
        assert table.loc[0, "quality above the hull, at equal A"].startswith("+0.")

    def test_points_are_static_runs_and_a_mean_for_each_group(self, studies):
        points = Evidence(studies).points(("heads", "heads_mlp"))
        assert points["method"].tolist() == ["static"] * 3 + ["diversed"] * 2 + ["diversed_mlp"]
        records = open_records(studies / "heads").records
        mean = records.groupby("acceptance_weight")["quality"].mean()
        assert points["quality"][3:5].tolist() == pytest.approx(mean.tolist())

    def test_what_is_missing_is_named(self, studies, tmp_path):
        with pytest.raises(MissingRecords, match=r"runs in .*: make front"):
            Evidence(tmp_path).group_table()
        (tmp_path / "static").symlink_to(studies / "static")
        (tmp_path / "heads").symlink_to(studies / "heads")
        with pytest.raises(MissingRecords, match=r"controls: make evidence"):
            Evidence(tmp_path).control_table()


class TestRunning:
    @pytest.fixture
    def started(self, monkeypatch, tmp_path):
        """Put a list in the place of the sweeps: what would have been run, and exit codes."""
        commands: list[list[str]] = []
        codes: list[int] = []

        class Done:
            def __init__(self, code):
                self.returncode = code

        def run(command, check):
            commands.append(command)
            return Done(codes.pop(0) if codes else 0)

        monkeypatch.setattr(evidence.subprocess, "run", run)
        monkeypatch.setattr(evidence, "draw", lambda _: [])
        return commands, codes

    def call(self, monkeypatch, *words):
        monkeypatch.setattr(sys, "argv", ["evidence", *words])
        with pytest.raises(SystemExit) as stop:
            evidence.main()
        return stop.value.code

    @pytest.mark.parametrize(
        ("words", "studies"),
        [
            ((), ["static", "heads", "heads_mlp"]),
            (("dial", "rules"), ["dial", "rules"]),
            (("--show",), []),
        ],
    )
    def test_the_named_studies_run_one_after_the_other(self, started, monkeypatch, words, studies):
        assert self.call(monkeypatch, *words) == 0
        files = [Path(command[3]) for command in started[0]]
        assert [path.stem for path in files] == studies
        assert all(path.is_file() for path in files)
        outputs = [Path(command[5]) for command in started[0]]
        assert outputs == [Path("outputs/evidence") / study for study in studies]

    def test_a_failure_is_told_and_stops_no_other_ctrl_c_does(self, started, monkeypatch):
        started[1].extend([1, 0, 0])
        assert self.call(monkeypatch) == 1
        assert len(started[0]) == 3
        started[1].extend([130])
        assert self.call(monkeypatch) == 130
        assert len(started[0]) == 4

    def test_an_unknown_study_is_refused(self, started, monkeypatch, capsys):
        assert self.call(monkeypatch, "head") == 2
        assert "head: no such study; there are static, heads" in capsys.readouterr().err
