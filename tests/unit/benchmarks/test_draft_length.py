"""The choice of N from timed calls: what is timed, and what is said of it."""

import re
import sys

import draft_length
import pytest
import torch

from diversed.models.loading import load_tiny_pair


@torch.no_grad()
def test_every_call_is_taken_back():
    pair = load_tiny_pair()
    draft, passes = draft_length.call_seconds(pair, 2, context=9, num_tokens=4, repeats=2)
    assert draft > 0
    assert len(passes) == 4
    assert min(passes) > 0
    assert pair.target.cache_width == pair.draft.cache_width == 8  # the last token is not read


def test_the_best_length_is_that_of_the_speed_model(capsys, monkeypatch):
    seconds = (1.0, [4.0, 4.0, 4.0, 40.0])  # a pass over four tokens is dear, one over three is not
    monkeypatch.setattr(draft_length, "call_seconds", lambda *_: seconds)
    monkeypatch.setattr(sys, "argv", ["draft_length.py", "--acceptance", "1", "--longest", "3"])
    draft_length.main()
    told = capsys.readouterr().out
    assert told.endswith("best N: 2\n")
    assert "| 2 | 4.000 | 1.71 |" in told  # 3 tokens in 3 draft steps and a pass: 12 / 7
    assert "| 3 | 40.000 | 0.36 |" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--acceptance", "1.5"], r"acceptance=1\.5: must lie in \[0, 1\]"),
        (["--acceptance", "0.5", "--target", "x"], "--target and --draft go together"),
    ],
)
def test_bad_arguments_are_named(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["draft_length.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        draft_length.main()
    assert stop.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert re.search(message, line)
