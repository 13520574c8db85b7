"""An evaluation that was stopped goes on after the batches that it had finished, and no others."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from composed import SMALL_EVALUATION, SMALL_TRAINING, composed

from diversed import app
from diversed.config import InputError, Interrupted
from diversed.evaluation import runner
from diversed.generation import SpeculativeDecoder
from diversed.models.checkpoint import new_head, save_head
from diversed.models.loading import load_tiny_pair
from diversed.records.parts import PARTS_FOLDER
from diversed.records.store import MANIFEST_FILE, read_manifest, read_records, read_trace

SMALL = (
    *SMALL_EVALUATION,
    "decoding.max_new_tokens=16",
    "evaluation.batch_size=3",
    "trainer.accelerator=cpu",
)


def evaluate(folder: Path, *overrides: str) -> dict[str, float]:
    return app.evaluate(composed("eval", *SMALL, *overrides), folder)


def stop_at_batch(
    monkeypatch: pytest.MonkeyPatch, number: int, error: type[BaseException] = KeyboardInterrupt
) -> None:
    """Stop before a batch is scored."""
    real, calls = runner._rows, []

    def rows(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == number:
            raise error
        return real(*args)

    monkeypatch.setattr(runner, "_rows", rows)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of every call of the decoder."""
    sizes: list[int] = []
    real = SpeculativeDecoder.generate

    def generate(self: SpeculativeDecoder, prompts: list[str], *rest: Any) -> Any:
        sizes.append(len(prompts))
        return real(self, prompts, *rest)

    monkeypatch.setattr(SpeculativeDecoder, "generate", generate)
    return sizes


def check_same(folder: Path, whole: Path) -> None:
    rows, wanted = (read_records(run).drop(columns="seconds") for run in (folder, whole))
    assert rows.equals(wanted)
    assert read_trace(folder).equals(read_trace(whole))
    results, wanted_results = (read_manifest(run)["results"] for run in (folder, whole))
    assert {**results, "tokens_per_second": 0} == {**wanted_results, "tokens_per_second": 0}
    assert not (folder / PARTS_FOLDER).exists()


@pytest.mark.parametrize("choice", ["auto", "folder"])
def test_a_stopped_evaluation_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int], choice: str
) -> None:
    whole, broken = tmp_path / "elsewhere" / "whole", tmp_path / "runs" / "broken"
    evaluate(whole)
    assert decoded == [3, 3, 2]
    with monkeypatch.context() as patch:
        stop_at_batch(patch, 3)
        with pytest.raises(Interrupted, match=rf"finished rows are saved; .* resume={broken}$"):
            evaluate(broken)
    assert read_manifest(broken)["status"] == "stopped"
    decoded.clear()
    later = tmp_path / "runs" / "later"
    evaluate(later, f"resume={broken if choice == 'folder' else 'auto'}")
    assert decoded == [2]
    assert not later.exists()
    check_same(broken, whole)


def test_records_without_a_trace_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    parquet = ("evaluation.writes_trace=false", "evaluation.records_format=parquet")
    evaluate(tmp_path / "whole", *parquet)
    with monkeypatch.context() as patch:
        stop_at_batch(patch, 2)
        with pytest.raises(Interrupted):
            evaluate(tmp_path / "broken", *parquet)
    decoded.clear()
    evaluate(tmp_path / "broken", *parquet, f"resume={tmp_path / 'broken'}")
    assert decoded == [3, 2]
    rows, wanted = (read_records(tmp_path / name) for name in ("broken", "whole"))
    assert rows.drop(columns="seconds").equals(wanted.drop(columns="seconds"))
    assert not (tmp_path / "broken" / "trace.parquet").exists()


def test_an_evaluation_that_is_not_resumed_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    with monkeypatch.context() as patch:
        stop_at_batch(patch, 3)
        with pytest.raises(Interrupted):
            evaluate(tmp_path)
    decoded.clear()
    evaluate(tmp_path, "seed=1")
    assert decoded == [3, 3, 2]


def test_a_run_that_is_stopped_before_it_is_told_finished_decodes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    evaluate(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(app.evaluation, "write_run_manifest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluate(tmp_path / "broken")
    assert len(read_records(tmp_path / "broken")) == 8
    decoded.clear()
    evaluate(tmp_path / "broken", f"resume={tmp_path / 'broken'}")
    assert decoded == []
    check_same(tmp_path / "broken", tmp_path / "whole")


def check_close(folder: Path, whole: Path) -> None:
    """Compare records of other batches: their numbers may differ by rounding."""
    rows, wanted = (read_records(run).drop(columns="seconds") for run in (folder, whole))
    pd.testing.assert_frame_equal(rows, wanted, rtol=1e-5)


MORE = {
    "prompts": (["evaluation.num_prompts=3"], [], [3, 2]),
    "samples": ([], ["evaluation.samples_per_prompt=2"], [3, 3, 2]),
    "both, as parquet without a trace": (
        ["evaluation.num_prompts=3"],
        ["evaluation.num_prompts=null", "evaluation.samples_per_prompt=2"],
        [3] * 9 + [2],  # 16 prompts twice, 3 rows done
    ),
    "nothing": ([], [], []),
}


@pytest.mark.parametrize("case", MORE)
def test_a_finished_evaluation_goes_on_to_more_rows(
    tmp_path: Path, decoded: list[int], case: str
) -> None:
    before, after, sizes = MORE[case]
    if "parquet" in case:
        plain = ["evaluation.writes_trace=false", "evaluation.records_format=parquet"]
        before, after = [*before, *plain], [*after, *plain]
    small, grown, whole = (tmp_path / name for name in ("small", "grown", "whole"))
    evaluate(whole, *after)
    evaluate(small, *before)
    decoded.clear()
    evaluate(grown, *after, f"resume={small}")
    assert decoded == sizes
    assert not grown.exists()
    check_close(small, whole)
    assert (small / "trace.parquet").is_file() == ("parquet" not in case)
    assert read_manifest(small)["status"] == "finished"


def test_a_finished_evaluation_that_is_stopped_again_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    run, more = tmp_path / "run", ("evaluation.samples_per_prompt=2", f"resume={tmp_path / 'run'}")
    evaluate(tmp_path / "whole", more[0])
    evaluate(run)
    with monkeypatch.context() as patch:
        stop_at_batch(patch, 2)
        with pytest.raises(Interrupted):
            evaluate(run, *more)
    assert len(read_records(run)) == 8
    decoded.clear()
    evaluate(run, *more)
    assert decoded == [3, 2]
    check_close(run, tmp_path / "whole")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("evaluation.num_prompts=7", r"evaluation.num_prompts=7 would drop rows .* which has 8;"),
        ("evaluation.samples_per_prompt=1", r"samples_per_prompt=1 would drop .* which has 2;"),
        ("decoding.temperature=0.5", r"another config \(decoding.temperature\); repeat"),
    ],
)
def test_a_finished_evaluation_is_not_cut_down_or_changed(
    tmp_path: Path, override: str, words: str
) -> None:
    evaluate(tmp_path, "evaluation.samples_per_prompt=2")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=words):
        evaluate(tmp_path, "evaluation.samples_per_prompt=2", override, f"resume={tmp_path}")
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_a_finished_evaluation_keeps_its_numbers_when_its_head_was_replaced(tmp_path: Path) -> None:
    run, head = tmp_path / "run", tmp_path / "head"
    verifier = ("verifier=diversed", f"verifier.checkpoint={head}")
    pair = load_tiny_pair()
    save_head(new_head(pair, initial_weight=0.5), head)
    evaluate(run, *verifier)
    before = (run / MANIFEST_FILE).read_bytes()
    save_head(new_head(pair, initial_weight=0.6), head)
    more = ("evaluation.samples_per_prompt=2", f"resume={run}")
    with pytest.raises(InputError, match=r"with another head; begin a run of its own$"):
        evaluate(run, *verifier, *more)
    assert (run / MANIFEST_FILE).read_bytes() == before
    assert not (run / "error.txt").exists()


@pytest.mark.parametrize("more", [(), ("evaluation.samples_per_prompt=2",)])
def test_a_finished_evaluation_whose_records_are_gone_is_decoded_again(
    tmp_path: Path, decoded: list[int], more: tuple[str, ...]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    evaluate(whole, *more)
    evaluate(run)
    (run / "records.jsonl").unlink()
    decoded.clear()
    evaluate(run, *more, f"resume={run}")
    assert sum(decoded) == 8 * (1 + len(more))
    check_same(run, whole)


def test_records_of_an_older_schema_are_not_gone_on_with(tmp_path: Path) -> None:
    evaluate(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({**manifest, "schema_version": 1}))
    with pytest.raises(InputError, match="schema version 1, this code goes on with version 2"):
        evaluate(tmp_path, f"resume={tmp_path}")


def test_a_finished_training_is_evaluated_on_more_rows_with_its_own_head_alone(
    tmp_path: Path, decoded: list[int]
) -> None:
    short = (*SMALL_TRAINING, "decoding.max_new_tokens=12")
    app.train(composed("train", *short), tmp_path)
    head = read_manifest(tmp_path)["head"]
    decoded.clear()
    more = composed("train", *short, "evaluation.num_prompts=6", f"resume={tmp_path}")
    app.train(more, tmp_path)
    assert decoded == [2]
    assert len(read_records(tmp_path)) == 6
    assert isinstance(head, str)
    assert read_manifest(tmp_path)["head"] == head
    manifest = json.loads((tmp_path / MANIFEST_FILE).read_text())
    (tmp_path / MANIFEST_FILE).write_text(json.dumps({**manifest, "head": "another head's"}))
    before = (tmp_path / MANIFEST_FILE).read_bytes()
    with pytest.raises(InputError, match=r"finished\.json was decoded with another head; begin a"):
        app.train(more, tmp_path)
    assert (tmp_path / MANIFEST_FILE).read_bytes() == before


def test_the_evaluation_of_a_training_goes_on_with_its_own_head_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    """Its config does not tell what head came out of it."""
    short = (*SMALL_TRAINING, "decoding.max_new_tokens=12", "evaluation.batch_size=2")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    app.train(composed("train", *short), whole)
    with monkeypatch.context() as patch:
        # two validations of two batches each come before
        stop_at_batch(patch, 6)
        with pytest.raises(Interrupted):
            app.train(composed("train", *short), broken)
    resumed = composed("train", *short, f"resume={broken}")
    with monkeypatch.context() as patch:
        patch.setattr(app.evaluation, "weights_fingerprint", lambda _: "another head's")
        with pytest.raises(InputError, match=r"parts/0000000-0000\.json was decoded with .* head;"):
            app.train(resumed, broken)
    decoded.clear()
    app.train(resumed, broken)
    assert decoded == [2]
    check_same(broken, whole)
