"""conf/verifier: one file per rule, with the rule's own settings and defaults."""

import inspect

import pytest
import yaml
from composed import CONFIG_FOLDER, composed
from hydra.utils import get_object, instantiate

from diversed import config
from diversed.config import InputError, input_errors, run_script
from diversed.core.verifiers import CASCADE_RULES, DIVERGENCES, RESIDUALS, VERIFIERS
from diversed.generation import checkpoint_verifier

FILES = {path.stem: path for path in sorted((CONFIG_FOLDER / "verifier").glob("*.yaml"))}
CHOSEN = {
    "static": {"weight": 0.3},
    "lenient": {"lenience": 0.4},
    "cascade": {"alpha": 0.2},
    "fuzzy": {"threshold": 0.1},
    "margin": {"theta": 0.6},
    "diversed": {"checkpoint": "some/head"},
}
RULES = sorted(set(VERIFIERS) - {"diversed"})  # a head needs its pair


def content(name: str) -> dict:
    return yaml.safe_load(FILES[name].read_text())


def overrides(name: str, **changed: object) -> list[str]:
    values = {**CHOSEN.get(name, {}), **changed}
    return [f"verifier={name}", *(f"verifier.{key}={value}" for key, value in values.items())]


def built(name: str, **changed: object):
    """Return what eval.py makes of a rule named on the command line."""
    with input_errors():
        return instantiate(composed("eval", *overrides(name, **changed)).verifier)


def test_there_is_one_file_per_rule() -> None:
    assert set(FILES) == {*VERIFIERS, "token_rule"}  # a control, which needs a tokenizer


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_file_holds_the_parameters_of_its_rule_and_their_defaults(name: str) -> None:
    node = content(name)
    target = get_object(node.pop("_target_"))
    assert target is (checkpoint_verifier if name == "diversed" else VERIFIERS[name])
    assert node.pop("_partial_", False) == (name == "diversed")
    parameters = dict(inspect.signature(target).parameters)
    parameters.pop("pair", None)
    assert set(node) == set(parameters)
    assert {key for key, value in node.items() if value == "???"} == set(CHOSEN.get(name, {}))
    for key, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert node[key] == parameter.default, key


@pytest.mark.parametrize("name", RULES)
def test_a_rule_named_on_the_command_line_is_that_rule(name: str) -> None:
    rule = built(name)
    assert type(rule) is VERIFIERS[name]
    assert rule.name == name
    for key, value in CHOSEN.get(name, {}).items():
        assert rule.settings[key] == value
    if name != "autoregressive":
        assert {built(name, bonus=bonus).bonus for bonus in ("verifier", "target")} == {
            "verifier",
            "target",
        }


@pytest.mark.parametrize("rule", CASCADE_RULES)
def test_every_rule_of_the_cascade_is_within_reach(rule: str) -> None:
    assert built("cascade", rule=rule).settings["rule"] == rule


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_every_divergence_is_within_reach(divergence: str) -> None:
    assert built("fuzzy", divergence=divergence).settings["divergence"] == divergence


@pytest.mark.parametrize("residual", RESIDUALS)
def test_both_residuals_are_within_reach(residual: str) -> None:
    assert built("lenient", residual=residual).settings["residual"] == residual


@pytest.mark.parametrize(
    ("name", "key", "choices"),
    [
        ("cascade", "rule", CASCADE_RULES),
        ("fuzzy", "divergence", DIVERGENCES),
        ("lenient", "residual", RESIDUALS),
    ],
)
def test_a_choice_stands_in_its_file(name: str, key: str, choices: tuple[str, ...]) -> None:
    (line,) = (line for line in FILES[name].read_text().splitlines() if line.startswith(f"{key}:"))
    assert all(choice in line for choice in choices)


@pytest.mark.parametrize("name", [name for name in CHOSEN if name != "diversed"])
def test_a_setting_that_was_not_given_is_named(name: str) -> None:
    (key,) = CHOSEN[name]
    with pytest.raises(InputError, match=rf"verifier\.{key}"), input_errors():
        instantiate(composed("eval", f"verifier={name}").verifier)


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("static", "weight", "1.5", r"verifier.weight=1.5: must lie in [0, 1]"),
        ("static", "weight", "null", r"verifier.weight=None: must be a number"),
        ("lenient", "lenience", "abc", r"verifier.lenience='abc': must be a number"),
        ("lenient", "lenience", "0", r"verifier.lenience=0: must lie in (0, 1]"),
        ("lenient", "residual", "p", r"verifier.residual='p': must be one of target, scaled"),
        ("cascade", "alpha", "nan", r"verifier.alpha=nan: rule token_v3 takes one in [0, 1]"),
        ("typical", "alpha", "inf", r"verifier.alpha=inf: must be finite and >= 0"),
        ("fuzzy", "threshold", "-1", r"verifier.threshold=-1: must be at least 0"),
        ("fuzzy", "divergence", "l2", r"verifier.divergence='l2': must be one of js, kl, tv"),
        ("margin", "theta", "[1]", r"verifier.theta=[1]: must be a number"),
        ("margin", "bonus", "q", r"verifier.bonus='q': must be one of verifier, target"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(name: str, key: str, value: str, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        built(name, **{key: value})
    assert str(refusal.value) == said


@pytest.mark.parametrize("name", ["lossy", "Static", "token_v3"])
def test_an_unknown_rule_on_the_command_line_gets_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # restored afterwards; run_script sets it
    monkeypatch.setattr(config, "_WANTS_TRACE", False)
    with pytest.raises(SystemExit) as stop:
        run_script(lambda: composed("eval", f"verifier={name}"), CONFIG_FOLDER, "eval")
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line
    assert all(known in line for known in VERIFIERS)
