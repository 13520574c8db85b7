"""The trace report as a text: what stands in it, and that nothing in it can do harm."""

import base64
import hashlib
import math
import re

import pandas as pd
import pytest
from report_page import answers_of, page_of, parse, tokens_of
from report_runs import HOSTILE, acceptance_run, answer, block, failed, write_examples, write_run

from diversed.evaluation.summary import summarise
from diversed.records.store import read_records, read_trace
from diversed.report.__main__ import main
from diversed.report.answers import short_number
from diversed.report.page import render
from diversed.report.runs import load_runs


@pytest.fixture
def folders(tmp_path):
    return write_examples(tmp_path)


# ---- numbers


@pytest.mark.parametrize("prompt_id", ["a", "b", "c"])
def test_every_token_carries_the_numbers_of_its_record(folders, prompt_id):
    sections = answers_of(page_of(folders), prompt_id)
    assert len(sections) == len(folders)
    for section, folder in zip(sections, folders, strict=True):
        trace = read_trace(folder)
        rows = trace[trace["prompt_id"] == prompt_id].to_dict("records")
        tokens = tokens_of(section)
        assert len(tokens) == len(rows) > 0
        for token, row in zip(tokens, rows, strict=True):
            for name in ("token", "status", "block", "position", "block_position"):
                assert token[name] == row[name]
            weight, target, draft = (
                row["target_weight"],
                row["target_prob"],
                row["draft_prob"],
            )
            expected = [
                target,
                draft,
                weight * target + (1 - weight) * draft,
                row["tv_distance"],
                weight,
                row["accept_prob"],
            ]
            for text, value in zip(token["numbers"], expected, strict=True):
                assert_says(text, value)


def assert_says(text, value):
    if math.isnan(value):
        assert text == "-"
    elif text == "1-":
        assert 0.9995 <= value < 1
    else:
        assert float(text) == pytest.approx(value, rel=5.1e-3, abs=0)


@pytest.mark.parametrize(
    "value", [0.0, 1.0, 0.5, 0.0999, 0.9994, 0.9995, 1 - 1e-9, 1e-3, 1.234e-4, 7.89e-5, 1e-30, 0.1]
)
def test_a_number_reads_back_to_three_digits_and_never_as_1_below_it(value):
    text = short_number(value)
    assert_says(text, value)
    assert (text == "1") == (value == 1)
    assert len(text) <= 8


def test_the_shade_is_w_in_tenths_of_emitted_tokens_alone(folders):
    static, plain = answers_of(page_of(folders), "b")[1:]
    assert [token["classes"] for token in tokens_of(static)] == [[], ["w5"]]
    assert [token["classes"] for token in tokens_of(plain)] == [[]]  # there is no w


def test_summary_numbers_are_those_of_the_summary(folders):
    page = page_of(folders)
    for folder in folders:
        expected = summarise(read_records(folder)).iloc[0]
        row = page.find("tr", data_run_name=expected["run_name"])
        texts = [cell.text for cell in row.find_all("td")]
        for column, digits, place in (
            ("quality", 3, 0),
            ("expected_acceptance", 3, 1),
            ("acceptance_rate", 3, 2),
            ("token_acceptance_rate", 3, 3),
            ("block_efficiency", 2, 4),
        ):
            if pd.isna(expected[column]):
                assert texts[place] == "–"
                continue
            bounds = [expected[f"{column}_{end}"] for end in ("low", "high")]
            value, low, high = (f"{number:.{digits}f}" for number in (expected[column], *bounds))
            assert texts[place] == f"{value} [{low}, {high}]"
        assert texts[6:] == ["3", "0", str(expected["num_truncated"])]


def test_mean_w_has_an_interval_over_prompts(tmp_path):
    weights = [0.2, 0.4, 0.9]
    answers = [
        answer(name, [block(("x", "bonus", 0.5, 0.5, 0.1), weight=weight)])
        for name, weight in zip("abc", weights, strict=True)
    ]
    run = write_run(tmp_path, "head", answers, method="diversed", acceptance_weight=2.0, dial=0.0)
    page = page_of([run])
    cell = page.find("tr", data_run_name="head").find_all("td")[5]
    assert cell.attributes["data-column"] == "mean w"
    value, low, high = map(float, re.findall(r"[\d.]+", cell.text))
    assert value == 0.5
    assert 0.2 <= low < 0.5 < high <= 0.9


def test_the_facts_of_an_answer_are_its_records(folders):
    texts = [
        fact.text for fact in answers_of(page_of(folders), "a")[0].find(class_="facts").children
    ]
    # its blocks emit 2 tokens each
    assert texts == ["4 tokens", "2.00 a block", "A 0.750", "mean w 1.000", "answer 4"]


# ---- safety


def test_hostile_text_is_shown_and_stays_text(tmp_path):
    hostile = f"{HOSTILE}\"'&amp;<!-- </span> ]]>"
    answers = [
        answer(
            hostile,
            [block((hostile, "recovered", 0.5, 0.5, 0.1))],
            prompt=hostile,
            reference=hostile,
            answer=f"{hostile}!",
            end_reason="stop",
        ),
        failed("broken", hostile),
    ]
    run = write_run(tmp_path, hostile, answers, model=hostile, method="lenient", setting=hostile)
    page = page_of([run])
    assert len(page.find_all("script")) == 1
    article = page.find("article", data_prompt_id=hostile)
    assert article.find(class_="question").text == hostile
    assert article.find(class_="reference").text == f"Reference {hostile}"
    assert article.find(class_="r").text == hostile
    assert f"answer {hostile}!" in article.text
    assert page.find("p", class_="error").text == hostile
    assert hostile in page.find("title").text
    assert page.find("tr", data_run_name=hostile).find("th").text.startswith(f"lenient, {hostile}")


def test_only_the_pages_own_script_and_style_may_run_and_nothing_is_fetched(folders):
    page = page_of(folders)
    (policy,) = [
        meta.attributes["content"]
        for meta in page.find_all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digest = hashlib.sha256(page.find(tag).text.encode()).digest()
        assert rules[rule] == f"'sha256-{base64.b64encode(digest).decode()}'"
    links = [
        value
        for element in page.find_all()
        for name, value in element.attributes.items()
        if name in ("src", "href", "action", "srcset", "data")
    ]
    assert sorted(links) == ["#answers", "data:,"]
    assert not [name for one in page.find_all() for name in one.attributes if name[:2] == "on"]


# ---- filters


def test_answers_say_run_and_outcome_for_the_filters(folders):
    page = page_of(folders)
    outcomes = {
        prompt_id: [
            (one.attributes["data-run"], one.attributes["data-outcome"])
            for one in answers_of(page, prompt_id)
        ]
        for prompt_id in "abc"
    }
    assert outcomes == {
        "a": [("0", "right"), ("1", "right"), ("2", "right")],
        "b": [("0", "right"), ("1", "wrong"), ("2", "right")],
        "c": [("0", "partial"), ("1", "partial"), ("2", "partial")],
    }
    assert "✗ wrong" in answers_of(page, "b")[1].find("h4").text
    assert "quality 0.250" in answers_of(page, "c")[0].find("h4").text


def test_filters_offer_the_outcomes_and_runs_that_occur(folders):
    page = page_of(folders)

    def options(name):
        select = page.find("select", name=name)
        return [option.attributes["value"] for option in select.find_all("option")]

    assert options("outcome") == ["", "right", "wrong", "partial", "differ"]
    assert options("run") == ["", "0", "1", "2"]
    boxes = page.find_all("input", name="shown")
    assert [box.attributes["value"] for box in boxes] == ["0", "1", "2"]
    alone = page_of(folders[:1])
    assert not alone.find_all("select", name="run")
    assert not alone.find_all("input", name="shown")


# ---- the command


def test_the_command_writes_into_the_first_folder_or_where_told(tmp_path, folders):
    main([str(folders[0]), str(folders[1])])
    page = parse((folders[0] / "report.html").read_text())
    assert len(answers_of(page, "a")) == 2
    out = tmp_path / "new" / "page.html"
    main([str(tmp_path), "--out", str(out), "--num-prompts", "1", "--num-runs", "1"])
    page = parse(out.read_text())
    assert len(page.find_all("article")) == 1
    assert len(answers_of(page, "a")) == 1


def test_as_many_runs_as_folders_are_given_stand_side_by_side(tmp_path):
    folders = [acceptance_run(tmp_path, f"run{n}", 0.5) for n in range(5)]
    main([str(folder) for folder in folders])
    assert len(answers_of(parse((folders[0] / "report.html").read_text()), "a")) == 5
    main([str(tmp_path)])
    assert len(answers_of(parse((tmp_path / "report.html").read_text()), "a")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no records.jsonl"),
        (["{run}", "--num-prompts", "0"], "argument --num-prompts: 0: must be at least 1"),
        (["{run}", "--out", "{run}"], "{run}"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, folders, capsys, arguments, message):
    run = str(folders[0])
    with pytest.raises(SystemExit) as raised:
        main([argument.format(run=run) for argument in arguments])
    assert raised.value.code == 2
    assert message.format(run=run) in capsys.readouterr().err.splitlines()[-1]


def test_the_same_records_give_the_same_page(folders):
    assert render(load_runs(folders)) == render(load_runs(folders))


def test_the_page_says_where_its_numbers_come_from(folders):
    footer = page_of(folders).find("footer").text
    assert (
        "exact: diversed 1.2.3 at commit 0123456789, target big and draft small, cpu, "
        "2026-01-02T03:04:05+00:00"
    ) in footer
