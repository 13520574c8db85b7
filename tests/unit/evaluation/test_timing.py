"""Seconds and speeds that can be compared."""

import time

import pandas as pd
import pytest
import torch

from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import AutoregressiveVerifier, LosslessVerifier
from diversed.evaluation.timing import interleaved_speeds, speed_ratio, timed
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import load_tiny_pair


def test_timed_returns_result_and_seconds():
    result, seconds = timed(lambda: time.sleep(0.05) or "done", torch.device("cpu"))
    assert result == "done"
    assert 0.05 <= seconds < 5


def test_every_decoder_is_timed_on_every_prompt_in_turn():
    pair = load_tiny_pair()
    settings = DecodeSettings(max_new_tokens=4)
    decoders = {
        "plain": SpeculativeDecoder(pair, AutoregressiveVerifier(), settings),
        "exact": SpeculativeDecoder(pair, LosslessVerifier(), settings),
    }
    prompts = ["Ada has 3 pens.", "Ben has 4 eggs.", "Eva has 5 coins."]
    speeds = interleaved_speeds(decoders, prompts, row_keys=[7, 8, 9], num_warmup=1)
    assert list(zip(speeds["run_name"], speeds["prompt"], strict=True)) == [
        ("plain", 0),
        ("exact", 0),
        ("exact", 1),
        ("plain", 1),
        ("plain", 2),
        ("exact", 2),
    ]
    assert (speeds["num_tokens"] == 4).all()
    assert (speeds["seconds"] > 0).all()


def test_speed_ratio_is_a_ratio_of_sums_paired_by_prompt():
    speeds = pd.DataFrame(
        [
            ("fast", 0, 10, 1.0),
            ("slow", 0, 10, 2.0),
            ("slow", 1, 100, 200.0),
            ("fast", 1, 90, 45.0),
        ],
        columns=["run_name", "prompt", "num_tokens", "seconds"],
    )
    interval = speed_ratio(speeds, "fast", "slow", num_resamples=50)
    assert interval.estimate == pytest.approx((100 / 46) / (110 / 202))
    assert interval.low <= interval.estimate <= interval.high
    assert speed_ratio(speeds, "fast", "fast", num_resamples=50).high == pytest.approx(1)
