"""The claims' numbers from records: groups of heads, rivals, the coin."""

import numpy as np
import pandas as pd
import pytest

from diversed.evaluation.evidence import (
    coin_flip,
    measure_against,
    measure_against_best,
    measure_groups,
)
from diversed.evaluation.summary import FRONT_SETTINGS
from diversed.theory.bootstrap import bootstrap_mean_over_seeds
from diversed.theory.front import front_distance_over_seeds
from diversed.theory.gain import gain_over_best

NUM_PROMPTS = 200
PROMPTS = [f"prompt-{number:03d}" for number in range(NUM_PROMPTS)]
STATIC = {0.0: (1.0, 0.3), 0.5: (0.85, 0.45), 1.0: (0.7, 0.95)}
OPTIONS = {"seed": 3, "num_resamples": 200}


def run(name, method, acceptance, quality, *, weight=None, head_weight=None, seed=0):
    """Return a run's records: A spread around a mean, quality 0 or 1 with a mean."""
    generator = np.random.default_rng(seed)
    spread = generator.normal(scale=0.02, size=NUM_PROMPTS)
    table = pd.DataFrame(
        {
            "prompt_id": PROMPTS,
            "sample": 0,
            "run_name": name,
            "method": method,
            "target_weight": np.nan if weight is None else weight,
            "acceptance_weight": np.nan if head_weight is None else head_weight,
            "dial": np.nan,
            "setting": "",
            "expected_acceptance": np.clip(acceptance + spread, 0, 1),
            "quality": (generator.random(NUM_PROMPTS) < quality).astype(float),
            "error": None,
        }
    )
    return table.assign(**dict.fromkeys(FRONT_SETTINGS, "same"))


@pytest.fixture(scope="module")
def static():
    return pd.concat(
        [run(f"w{w}", "static", *point, weight=w, seed=7) for w, point in STATIC.items()]
    )


def heads(weight, acceptance, quality, *, method="diversed", number=3):
    return pd.concat(
        [
            run(
                f"{method}-{weight}-{seed}",
                method,
                acceptance + 0.01 * seed,
                quality,
                head_weight=weight,
                seed=seed,
            )
            for seed in range(number)
        ]
    )


def arrays(records):
    """Return A and quality, [runs, prompts], without the functions under test."""
    names = list(dict.fromkeys(records["run_name"]))
    parts = [records[records["run_name"] == name].set_index("prompt_id") for name in names]
    return tuple(
        np.array([part.loc[PROMPTS, column] for part in parts])
        for column in ("expected_acceptance", "quality")
    )


def test_a_group_is_measured_over_its_runs_and_prompts(static):
    own = heads(1.5, 0.9, 0.9)
    row = measure_groups({"heads": own}, static, **OPTIONS).iloc[0]
    (xs, ys), (static_xs, static_ys) = arrays(own), arrays(static)
    distance = front_distance_over_seeds(static_xs, static_ys, xs, ys, **OPTIONS)
    rivals = [row[None] for row in static_ys + 1.5 * static_xs]
    gain = gain_over_best(ys + 1.5 * xs, rivals, **OPTIONS)
    wanted = {
        "quality": bootstrap_mean_over_seeds(ys, **OPTIONS),
        "expected_acceptance": bootstrap_mean_over_seeds(xs, **OPTIONS),
        "objective": bootstrap_mean_over_seeds(ys + 1.5 * xs, **OPTIONS),
        "quality_above_hull": distance.quality_above_hull,
        "objective_above_static": gain,
    }
    assert (row["group"], row["acceptance_weight"], row["num_heads"]) == ("heads", 1.5, 3)
    for name, interval in wanted.items():
        found = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
        assert found == pytest.approx([interval.estimate, interval.low, interval.high])
    assert row["quality_above_hull_low"] > 0.2


def test_the_lambda_of_rules_is_asked_for_or_their_objective_is_unknown(static):
    rule = {"rule": run("rule", "lenient", 0.9, 0.9)}
    assert np.isnan(measure_groups(rule, static, **OPTIONS)["objective_above_static"].item())
    told = measure_groups(rule, static, 2.0, **OPTIONS).iloc[0]
    (xs, ys) = arrays(rule["rule"])
    assert told["objective"] == pytest.approx(float((ys + 2 * xs).mean()))


def test_heads_of_two_lambdas_are_no_group(static):
    mixed = pd.concat([heads(1.5, 0.9, 0.9), heads(3.0, 0.9, 0.9)])
    with pytest.raises(ValueError, match=r"'all' mixes heads of lambda \[1\.5, 3\.0\]"):
        measure_groups({"all": mixed}, static, **OPTIONS)


def test_a_rival_raises_the_hull_and_is_beaten_in_j(static):
    own = heads(1.5, 0.9, 0.9)
    rival = heads(1.5, 0.92, 0.8, method="prompt_head", number=2)
    row = measure_against(own, {"prompt": rival}, static, 1.5, **OPTIONS).iloc[0]
    (xs, ys), (rival_xs, rival_ys) = arrays(own), arrays(rival)
    (static_xs, static_ys) = arrays(static)
    distance = front_distance_over_seeds(
        np.vstack([static_xs, rival_xs.mean(0)]),
        np.vstack([static_ys, rival_ys.mean(0)]),
        xs,
        ys,
        **OPTIONS,
    ).quality_above_hull
    gain = gain_over_best(ys + 1.5 * xs, [rival_ys + 1.5 * rival_xs], **OPTIONS)
    for name, interval in (("objective_gain", gain), ("quality_above_hull", distance)):
        found = [row[f"{name}{end}"] for end in ("", "_low", "_high")]
        assert found == pytest.approx([interval.estimate, interval.low, interval.high])
    plain = measure_groups({"heads": own}, static, **OPTIONS)
    assert row["quality_above_hull"] < plain["quality_above_hull"].item() - 0.1
    assert row["num_heads"] == 2


def test_the_best_rule_of_a_family_is_the_rival(static):
    own = heads(1.5, 0.9, 0.9)
    rules = {f"rule-{a}": run(f"rule-{a}", "lenient", a, 0.9, seed=8) for a in (0.8, 0.95)}
    row = measure_against_best(own, {"lenient": rules}, 1.5, **OPTIONS).iloc[0]
    (xs, ys) = arrays(own)
    places = [arrays(rule) for rule in rules.values()]
    rivals = [rule_ys + 1.5 * rule_xs for rule_xs, rule_ys in places]
    gain = gain_over_best(ys + 1.5 * xs, rivals, **OPTIONS)
    assert (row["family"], row["best"]) == ("lenient", "rule-0.95")
    found = [row[f"objective_gain{end}"] for end in ("", "_low", "_high")]
    assert found == pytest.approx([gain.estimate, gain.low, gain.high])


class TestCoin:
    def test_it_takes_whole_prompts_from_either_run(self):
        first, second = run("a", "static", 1.0, 0.3), run("b", "static", 0.7, 0.9, seed=1)
        mixed = coin_flip(first, second.sample(frac=1, random_state=0), 0.5, seed=0)
        assert sorted(mixed["prompt_id"]) == PROMPTS
        by_prompt = mixed.set_index("prompt_id")["expected_acceptance"]
        sources = [table.set_index("prompt_id")["expected_acceptance"] for table in (first, second)]
        is_second = by_prompt == sources[1].loc[by_prompt.index]
        assert 0.4 < is_second.mean() < 0.6
        assert (by_prompt[~is_second] == sources[0].loc[by_prompt.index[~is_second]]).all()
        assert set(mixed["method"]) == {"coin"}

    @pytest.mark.parametrize(("share", "source"), [(0.0, 0), (1.0, 1)])
    def test_at_its_ends_it_is_one_of_the_runs(self, share, source):
        runs = run("a", "static", 1.0, 0.3), run("b", "static", 0.7, 0.9, seed=1)
        assert coin_flip(*runs, share)["quality"].tolist() == runs[source]["quality"].tolist()

    def test_it_lies_on_the_chord_on_average(self):
        ends = run("a", "static", 1.0, 0.3), run("b", "static", 0.7, 0.9, seed=1)
        flips = [coin_flip(*ends, 0.25, seed=seed) for seed in range(200)]
        for column in ("expected_acceptance", "quality"):
            means = np.array([flip[column].mean() for flip in flips])
            chord = 0.75 * ends[0][column].mean() + 0.25 * ends[1][column].mean()
            assert abs(means.mean() - chord) < 4 * means.std() / np.sqrt(200)

    def test_other_prompts_are_refused(self):
        with pytest.raises(ValueError, match="do not have the same prompts"):
            coin_flip(run("a", "static", 1.0, 0.3), run("b", "static", 1.0, 0.3)[:-1], 0.5)
