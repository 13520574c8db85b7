"""An evaluation that was stopped goes on after the batches that it had finished, and no others."""

from pathlib import Path
from typing import Any

import pytest
from composed import SMALL_EVALUATION, SMALL_TRAINING, composed

from diversed import app
from diversed.config import InputError, Interrupted
from diversed.evaluation import runner
from diversed.generation import SpeculativeDecoder
from diversed.records.parts import PARTS_FOLDER
from diversed.records.store import read_manifest, read_records, read_trace

SMALL = (*SMALL_EVALUATION, "evaluation.batch_size=3", "trainer.accelerator=cpu")


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
