"""What a trace report shows of many runs and prompts, of failures and of gaps in the records."""

import math
import re

import pytest
from report_page import answers_of, page_of, parse, tokens_of
from report_runs import acceptance_run, answer, block, failed, write_examples, write_run

from diversed.records.store import RecordsError
from diversed.report.page import Limits, render
from diversed.report.runs import choose_runs, load_runs


@pytest.fixture
def folders(tmp_path):
    return write_examples(tmp_path)


# ---- what is left out


def many_prompts(tmp_path, number):
    entries = [(f" word{n}", "accepted", 0.1234, 0.4321, 0.2468) for n in range(20)]
    answers = [answer(f"p{n}", [block(*entries)], end_reason="length") for n in range(number)]
    names = ("one", "two")
    return [write_run(tmp_path / name, name, answers) for name in names]


def test_a_page_keeps_below_its_size_and_says_what_it_leaves_out(tmp_path):
    folders = many_prompts(tmp_path, 400)
    text = render(load_runs(folders), Limits(num_prompts=400, num_bytes=100_000))
    assert 95_000 < len(text.encode()) < 100_000
    page = parse(text)
    number = len(page.find_all("article"))
    assert 1 < number < 400
    assert f"{number} of 400 prompts are shown, {400 - number} are left out" in page.text
    assert page.find("output").text == f"{number} of {number} shown"
    assert page.find("tr", data_run_name="one").find_all("td")[6].text == "400"


def test_the_number_of_prompts_can_be_set(tmp_path):
    folders = many_prompts(tmp_path, 5)
    page = page_of(folders, num_prompts=2)
    shown = [article.attributes["data-prompt-id"] for article in page.find_all("article")]
    assert shown == ["p0", "p1"]
    assert "2 of 5 prompts are shown, 3 are left out" in page.text
    assert "left out" not in page_of(folders).find("main").text


def test_one_prompt_is_shown_whatever_its_size(tmp_path):
    page = page_of(many_prompts(tmp_path, 2), num_bytes=1)
    assert len(page.find_all("article")) == 1


@pytest.mark.parametrize("name", ["num_prompts", "num_runs", "num_bytes"])
def test_limits_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0: must be at least 1"):
        Limits(**{name: 0})


# ---- runs


def test_a_folder_of_runs_stands_in_reading_order(tmp_path, folders):
    runs = load_runs([tmp_path])
    assert [run.name for run in runs] == ["plain", "exact", "mixed"]
    assert [run.label for run in runs] == ["plain decoding", "lossless", "static, w = 0.5"]
    given = load_runs([folders[1], tmp_path])
    assert [run.name for run in given] == ["mixed", "plain", "exact"]  # once each


def test_of_many_runs_the_telling_ones_stand_side_by_side(tmp_path):
    acceptance_run(tmp_path, "plain", None, method="autoregressive")
    acceptance_run(tmp_path, "exact", 0.6)
    for weight, acceptance in ((0.2, 0.95), (0.5, 0.85), (0.8, 0.7)):
        name = f"static{weight}"
        acceptance_run(tmp_path, name, acceptance, method="static", target_weight=weight)
    columns = {"method": "diversed", "acceptance_weight": 1.5}
    acceptance_run(tmp_path, "head", 0.87, dial=0.0, **columns)
    acceptance_run(tmp_path, "dialled", 0.7, dial=1.0, **columns)
    runs = load_runs([tmp_path])
    assert [run.label for run in runs[-2:]] == ["DIVERSED, λ = 1.5, dial = 1", "DIVERSED, λ = 1.5"]

    def chosen(number):
        return {run.name for run in choose_runs(runs, number)}

    first = runs[-2].name  # the first DIVERSED run, whose acceptance the static run should match
    assert first == "dialled"
    assert chosen(1) == {first}
    assert chosen(3) == {first, "exact", "static0.8"}
    assert chosen(4) == {first, "exact", "static0.8", "plain"}
    assert chosen(5) == {first, "exact", "static0.8", "plain", "head"}
    page = page_of([tmp_path], num_runs=3)
    assert "4 more runs, whose texts are not shown" in page.text
    assert len(page.find_all("tr", data_run_name="static0.2")) == 1
    assert len(answers_of(page, "a")) == 3


def test_a_run_without_a_trace_gives_its_place_to_one_with(tmp_path):
    acceptance_run(tmp_path, "head", 0.9, method="diversed", has_trace=False)
    acceptance_run(tmp_path, "exact", 0.6)
    assert [run.name for run in choose_runs(load_runs([tmp_path]), 1)] == ["exact"]


def test_runs_that_settings_do_not_tell_apart_carry_their_names(tmp_path):
    acceptance_run(tmp_path, "seed0", 0.9)
    acceptance_run(tmp_path, "seed1", 0.9, seed=1)
    assert [run.label for run in load_runs([tmp_path])] == ["lossless (seed0)", "lossless (seed1)"]
    page = page_of([tmp_path])
    assert "seed" not in page.find(class_="settings").text
    detail = page.find("tr", data_run_name="seed1").find("th").find("small")
    assert detail.text == "seed1, seed 1"


def test_two_runs_of_one_name_are_refused(tmp_path):
    for folder in ("one", "two"):
        write_run(tmp_path / folder, "same", [answer("a", [block(("x", "bonus", 1, 1, 0))])])
    with pytest.raises(RecordsError, match=r"run same lies in .*one and in .*two.*name="):
        load_runs([tmp_path / "one", tmp_path / "two"])


def test_a_prompt_that_a_run_lacks_or_words_differently(tmp_path):
    entries = block(("x", "bonus", 1, 1, 0), ("<eos>", "bonus", 1, 1, 0))
    one = write_run(tmp_path / "one", "one", [answer("a", [entries]), answer("b", [entries])])
    two = write_run(tmp_path / "two", "two", [answer("b", [entries], prompt="Other words?")])
    page = page_of([one, two])
    shown = [article.attributes["data-prompt-id"] for article in page.find_all("article")]
    assert shown == ["b", "a"]  # what both have comes first
    absent = answers_of(page, "a")[1]
    assert "not in this run" in absent.text
    assert "data-outcome" not in absent.attributes
    own = answers_of(page, "b")[1].find("details")
    assert own.find("p").text == "Other words?"
    assert not answers_of(page, "b")[0].find_all("details")
    assert "different numbers of prompts" in page.text


def test_samples_of_a_prompt_stand_one_after_the_other(tmp_path):
    entries = block(("x", "bonus", 1, 1, 0))
    answers = [answer(name, [entries], sample=n) for name in "ab" for n in range(2)]
    page = page_of([write_run(tmp_path, "many", answers)], num_prompts=1)
    headings = [article.find("h3").text for article in page.find_all("article")]
    assert headings == ["a, sample 0", "a, sample 1"]


def test_rules_without_w_show_their_setting(tmp_path):
    entries = block(("x", "accepted", 0.2, 0.4, 0.3), weight=math.nan)
    run = write_run(
        tmp_path,
        "lenient",
        [answer("a", [entries], end_reason="length")],
        method="lenient",
        setting="lenience=0.5",
    )
    page = page_of([run])
    (token,) = tokens_of(answers_of(page, "a")[0])
    assert token["classes"] == []
    assert token["numbers"][2] == token["numbers"][4] == "-"
    assert load_runs([run])[0].label == "lenient, lenience=0.5"


# ---- what went wrong


def test_rows_with_errors_are_shown_and_counted(tmp_path):
    scored = answer(
        "b",
        [block(("x", "bonus", 1, 1, 0))],
        quality=None,
        error="scoring failed: no",
        end_reason="",
    )
    good = answer("c", [block(("x", "bonus", 1, 1, 0))])
    run = write_run(tmp_path, "one", [failed("a", "prompt too long"), scored, good])
    page = page_of([run])
    order = [article.attributes["data-prompt-id"] for article in page.find_all("article")]
    assert order == ["b", "c", "a"]  # completions first
    for prompt_id, error in (("a", "prompt too long"), ("b", "scoring failed: no")):
        (section,) = answers_of(page, prompt_id)
        assert section.attributes["data-outcome"] == "error"
        assert section.find("p", class_="error").text == error
    assert len(tokens_of(answers_of(page, "b")[0])) == 1
    assert not answers_of(page, "a")[0].find_all(class_="tokens")
    assert "2 of 3 rows have an error" in page.text
    assert page.find("tr", data_run_name="one").find_all("td")[7].text == "2"


def test_a_run_of_errors_alone_is_shown(tmp_path):
    good = write_run(tmp_path / "good", "good", [answer("a", [block(("x", "bonus", 1, 1, 0))])])
    unscored = answer("a", [block(("x", "bonus", 1, 1, 0))], quality=None, error="no judge")
    bad = write_run(tmp_path / "bad", "bad", [unscored], method="static")
    page = page_of([good, bad])
    assert [one.attributes["data-outcome"] for one in answers_of(page, "a")] == ["right", "error"]
    assert page.find("tr", data_run_name="bad").find_all("td")[0].text == "–"


def test_without_any_trace_the_message_names_run_and_setting(tmp_path):
    run = write_run(tmp_path, "untraced", [answer("a", [])], has_trace=False)
    with pytest.raises(RecordsError, match=r"untraced.*evaluation\.writes_trace=true"):
        render(load_runs([run]))


def test_one_run_without_a_trace_is_shown_as_plain_text(tmp_path, folders):
    plain = write_run(
        tmp_path / "untraced", "untraced", [answer("a", [], text="plain\ntext")], has_trace=False
    )
    page = page_of([folders[0], plain])
    section = answers_of(page, "a")[1]
    assert section.find(class_="plain").text == "plain\ntext"
    assert not section.find_all(class_="tokens")
    assert re.search(r"run untraced has no trace.*evaluation\.writes_trace=true", page.text)


def test_the_recorded_text_is_given_where_tokens_do_not_spell_it(tmp_path):
    entries = block(("\ufffd", "accepted", 1, 1, 0), ("\ufffd", "accepted", 1, 1, 0))
    odd = answer("a", [entries], text="ä", end_reason="stop")
    empty = answer("b", [block(("", "bonus", 1, 1, 0))], end_reason="stop")
    page = page_of([write_run(tmp_path, "one", [odd, empty])])
    assert answers_of(page, "a")[0].find("details").find("p").text == "ä"
    (section,) = answers_of(page, "b")
    assert not section.find_all("details")
    assert section.find(class_="b").text == "⟨0⟩"  # something to point at


def test_a_newline_is_marked_and_kept(folders):
    section = answers_of(page_of(folders), "b")[0]
    token = section.find(class_="tokens").find_all(class_="a")[0]
    assert token.text == "7\n8"
    assert [child.tag for child in token.children] == ["u"]
