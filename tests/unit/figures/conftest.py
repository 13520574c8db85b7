"""Ten runs and the tokens of a few answers, from which every figure is drawn."""

import numpy as np
import pandas as pd
import pytest

PANEL = {"model": "tiny", "data": "arithmetic", "temperature": 1.0, "draft_length": 3.0}


@pytest.fixture
def table():
    """Ten runs; the index repeats, as after a concat.

    The static points, with lossless or w = 1, have the hull (0.7, 0.95), (0.9, 0.75), (1.0, 0.3).
    """
    nan = np.nan
    rows = [
        ("autoregressive", nan, nan, "", 0.94, nan, 1.0),
        ("lossless", nan, nan, "", 0.95, 0.7, 0.8),
        ("static", 1.0, nan, "weight=1.0", 0.95, 0.7, 0.81),
        ("static", 0.0, nan, "weight=0.0", 0.30, 1.0, 0.4),
        ("static", 0.5, nan, "weight=0.5", 0.75, 0.9, 0.55),
        ("static", 0.8, nan, "weight=0.8", 0.78, 0.8, 0.7),
        ("static", 0.2, nan, "weight=0.2", 0.40, 0.97, 0.45),
        ("lenient", nan, nan, "lenience=0.5", 0.70, 0.85, 0.6),
        ("diversed", nan, 0.5, "dial=0.0", 0.93, 0.88, 0.58),
        ("diversed", nan, 1.5, "dial=0.0", 0.90, 0.95, 0.5),
    ]
    columns = ["method", "target_weight", "acceptance_weight", "setting", "quality"]
    columns += ["expected_acceptance", "relative_time"]
    table = pd.DataFrame(rows, columns=columns, index=[0, 1] * 5)
    table["run_name"] = [f"run{i}" for i in range(10)]
    table["seed"] = 0
    table["dial"] = [nan] * 8 + [0.0] * 2
    is_plain = table["method"] == "autoregressive"
    for column, value in PANEL.items():
        table[column] = value
    table["draft_length"] = np.where(is_plain, nan, 3.0)
    table["mean_accepted"] = np.where(is_plain, 0.0, 3 * table["expected_acceptance"] - 1)
    table["acceptance_rate"] = table["expected_acceptance"] - 0.2
    table["bias"] = np.where(is_plain, nan, 0.05)
    table["train_data"] = np.where(table["method"] == "diversed", "arithmetic", None)
    table["target"] = "large"
    table["draft"] = np.where(is_plain, None, "small")
    bounded = {"quality": 0.02, "expected_acceptance": 0.01, "relative_time": 0.03}
    bounded |= {"mean_accepted": 0.1, "acceptance_rate": 0.01}
    for column, reach in bounded.items():
        table[f"{column}_low"] = table[column] - reach
        table[f"{column}_high"] = table[column] + 2 * reach
    return table.assign(num_truncated=0, num_errors=0, num_prompts=100)


def run_columns(name, method, **settings):
    """Return what the tokens of a run share."""
    nothing = dict.fromkeys(("target_weight", "acceptance_weight", "dial"), np.nan)
    return nothing | {"setting": "", "run_name": name, "method": method} | PANEL | settings


@pytest.fixture
def traces():
    """Tokens of three runs: N = 3, two prompts with two blocks each."""
    blocks = [  # statuses of the drafted tokens, their acceptance, and the last token
        (["accepted", "accepted", "accepted"], [0.9, 0.8, 0.5], "bonus"),
        (["accepted", "rejected", "unjudged"], [0.7, 0.4, 1.0], "recovered"),
        (["rejected", "unjudged", "unjudged"], [0.6, 0.5, 0.5], "recovered"),
        (["accepted", "accepted", "rejected"], [1.0, 0.5, 0.2], "recovered"),
    ]
    runs = [
        run_columns("lossless-0", "lossless"),
        run_columns("head-0", "diversed", acceptance_weight=1.5, dial=0.0),
        run_columns("head-1", "diversed", acceptance_weight=1.5, dial=0.0),
    ]
    texts, weights = [" plus", "4", " so", "."], [0.97, 1.0, 0.1, 0.5]
    rows = []
    for shared in runs:
        for index, (statuses, accepts, last) in enumerate(blocks):
            for place, status in enumerate([*statuses, last]):
                is_head = shared["method"] == "diversed"
                rows.append(
                    shared
                    | {
                        "prompt_id": f"p{index // 2}",
                        "sample": 0,
                        "block": index % 2,
                        "block_position": place,
                        "status": status,
                        "accept_prob": accepts[place] if place < 3 else np.nan,
                        "token": texts[place],
                        "tv_distance": 0.1 + 0.2 * place,
                        "target_weight_at": weights[place] if is_head else 1.0,
                    }
                )
    return pd.DataFrame(rows)
