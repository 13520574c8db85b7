"""GSM8K: the number that a completion states, on awkward ones and on all of the real answers."""

import json
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_needs import SAMPLE_DATA, needs_sample_data

from diversed.tasks.base import TaskDataError
from diversed.tasks.gsm8k import SHOTS, Gsm8kTask, stated_number

COMPLETIONS = {
    # the marker
    "She has 3 + 4 = 7 pens.\n#### 7": "7",
    "####7": "7",
    "####\n7": "7",
    "#### $18": "18",
    "#### 18 dollars": "18",
    "#### 18%": "18",
    "#### 1,234": "1234",
    "#### 1,234,567.50": "1234567.5",
    "#### 3.0": "3",
    "#### 2.5": "2.5",
    "#### -7": "-7",
    "#### \u22127": "-7",
    "#### -$7.25": "-7.25",
    "#### 18.": "18",
    "#### **18**": "18",
    "**#### 18**": "18",
    "#### *$1,000*.": "1000",
    "#### 1/2": "0.5",
    "#### 1 1/2 cups": "1.5",
    "#### \u00bd": "0.5",
    "#### 7 apples in 3 boxes": "7",
    "#### x = 7": "7",
    "#### 3 * 6 = 18": "18",
    "#### The answer is 18": "18",
    "#### 18 ####": "18",
    "#### 18\n####": "18",
    "#### 5\nNo, I forgot one.\n#### 6": "6",
    "#### 18\nThere were 24 hours in all.": "18",
    "#### none\nSo it is 5": "5",
    # a next question
    "#### 7\n\nQuestion: Tom has 9 pens.\nAnswer: #### 9": "7",
    "#### 7 Question: Tom has 9 pens. #### 9": "7",
    "The answer is 7.\n\nQuestion: Tom has 9 pens.\nAnswer: \\boxed{9}": "7",
    "Question: Tom has 9 pens and loses 2.\nAnswer: 9 - 2 = 7\n#### 7": "7",
    # headings are no marker
    "#### Step 1: add\n3 + 4 = 7\n#### Step 2: double\n7 * 2 = \\boxed{14}": "14",
    "#### **Step 3**\nSo 14": "14",
    # the box
    "So the answer is \\boxed{18}.": "18",
    "\\boxed{18} of the 24 hours": "18",
    "First \\boxed{3}, then \\boxed{4} of 9": "4",
    "\\boxed{\\$1{,}234.50}": "1234.5",
    "\\boxed{\\text{18 dollars}}": "18",
    "\\boxed{\\frac{3}{4}}": "0.75",
    "\\boxed{x = 3 \\times 6 = 18}": "18",
    "\\boxed{18\\%}": "18",
    "\\boxed 7": "7",
    "$\\boxed{-7}$": "-7",
    "#### 7 and \\boxed{8}": "7",
    "\\boxed{none}, that is 5": "5",
    "\\boxed{18": "18",
    # the last number
    "She pays $18.": "18",
    "It took 3 days and 12 hours.": "12",
    "The total is 1,200 dollars.": "1200",
    "The answer is **$1,200.00**.": "1200",
    "7 - 3 = 4": "4",
    "10-3": "3",
    "between 10\u201315": "15",
    "The temperature fell to -5.": "-5",
    "She eats 1/2 of it": "0.5",
    "1.5e3": "1500",
    "CO2 weighs 44": "44",
    "44 grams of CO2": "44",
    # nothing
    "": None,
    "   \n": None,
    "I do not know.": None,
    "####": None,
    "\\boxed{}": None,
}


@pytest.fixture
def task(tmp_path):
    """Return the task over rows that this test writes."""
    rows = [
        {"question": "What is 3 + 4?", "answer": "It is <<3+4=7>>7.\n#### 7"},
        {"question": "And 1,000 + 234?", "answer": "It is 1,234.\n#### 1,234"},
        {"question": "And 3 - 10?", "answer": "It is -7.\n#### -7"},
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Gsm8kTask(path=str(path))


@pytest.mark.parametrize(("text", "wanted"), COMPLETIONS.items())
def test_awkward_completions_state_their_number(task, text, wanted):
    assert task.extract(text) == wanted
    for answer in ("18", "7", "5", "-7", "2.5", wanted or "0"):
        is_right = wanted is not None and Fraction(answer) == Fraction(wanted)
        assert task.score(text, {"answer": answer}) == float(is_right)


def test_the_table_is_long_enough():
    assert len(COMPLETIONS) >= 40


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("#### 3.0", "3", 1.0),
        ("#### 2.5", "2", 0.0),
        ("#### 2", "2.5", 0.0),
        ("#### 6/2", "3", 1.0),
        ("#### 1,000", "1000", 1.0),
        ("#### 0.30000000000000004", "0.3", 0.0),
        ("#### 9007199254740993", "9007199254740992", 0.0),  # equal as floats
    ],
)
def test_numbers_are_compared_exactly(task, text, answer, score):
    got = task.score(text, {"answer": answer})
    assert (got, type(got)) == (score, float)


def test_rows_become_examples(task):
    first, second, third = task.examples("test")
    assert first == {
        "id": "gsm8k/test/0",
        "question": "What is 3 + 4?",
        "solution": "It is <<3+4=7>>7.\n#### 7",
        "answer": "7",
    }
    assert (second["answer"], third["answer"]) == ("1234", "-7")
    assert task.reference(second) == "1234"
    assert [task.score(row["solution"], row) for row in (first, second, third)] == [1.0] * 3


def test_a_plain_prompt_ends_in_the_question_and_stops_at_a_next_one(task):
    task.settle(has_chat_template=False, context_length=4096)
    prompt = task.prompt(task.examples("test")[0])
    assert prompt.endswith("\n\nQuestion: What is 3 + 4?\nAnswer:")
    assert prompt.count("Question:") == len(SHOTS) + 1
    assert task.stop_strings == ("\nQuestion:",)
    assert task.provenance()["num_shots"] == 4


def test_a_conversation_asks_once(task):
    task.settle(has_chat_template=True, context_length=4096)
    (turn,) = task.prompt(task.examples("test")[0])
    assert turn["role"] == "user"
    assert turn["content"].endswith("What is 3 + 4?")
    assert "####" in turn["content"]
    assert task.stop_strings == ()


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.text[:12])
def test_worked_examples_are_right(task, shot):
    for left, right in re.findall(r"([0-9 *+/.-]+) = \$?([0-9.]+)", shot.answer):
        assert eval(left) == pytest.approx(float(right)), left  # noqa: S307 - our own sums
    lines = shot.answer.split("\n")
    assert task.extract(lines[-1]) == task.extract("\n".join(lines[:-1]).rstrip("."))


BAD_ROWS = {
    "no number": (
        {"question": "q", "answer": "#### none"},
        "row 1 .test. has no number after ####",
    ),
    "no marker": ({"question": "q", "answer": "7"}, "has no number after ####"),
    "a number": ({"question": "q", "answer": 7}, "has a int in the column answer, not a text"),
}


@pytest.mark.parametrize(("row", "message"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_cannot_be_scored_are_refused(tmp_path, row, message):
    (tmp_path / "test.jsonl").write_text(json.dumps(row))
    with pytest.raises(TaskDataError, match=message):
        Gsm8kTask(path=str(tmp_path)).examples("test")


@given(
    st.one_of(
        st.text(), st.text(alphabet="#\\boxed{}$ 0123456789.,/-=\nQuestion:Step", max_size=300)
    )
)
def test_any_text_has_a_score(text):
    task = Gsm8kTask()
    assert task.score(text, {"answer": "7"}) in (0.0, 1.0)
    answer = task.extract(text)
    if answer is not None and len(answer) < 50:
        assert task.extract(answer) == answer


@pytest.mark.parametrize(
    "text",
    [
        "9" * 100_000,
        "\\boxed{" * 20_000,
        "####" * 20_000,
        " " * 100_000 + "Question:",
        "Question:" * 10_000,
        "1/" * 50_000,
        "1 " * 50_000,
        "-" * 100_000,
        "1," * 50_000,
        "1e" * 50_000,
        "\\frac{" * 20_000,
        "=" * 100_000,
        "\ud800#### 7",
    ],
    ids=lambda text: repr(text[:8]),
)
def test_hostile_texts_are_read_in_no_time(text):
    started = time.process_time()
    stated_number(text)
    assert time.process_time() - started < 2


def answers(name):
    lines = (SAMPLE_DATA / "gsm8k" / name).read_text().splitlines()
    return [json.loads(line)["answer"] for line in lines]


@needs_sample_data
@pytest.mark.parametrize(
    ("name", "number"), [("test.jsonl", 1319), ("train_first2000.jsonl", 2000)]
)
def test_all_real_answers_state_themselves(task, name, number):
    texts = answers(name)
    assert len(texts) == number
    for text in texts:
        gold = text.split("####")[1].strip().replace(",", "")
        assert task.extract(text) == gold
        assert task.score(text, {"answer": gold}) == 1.0
        assert task.score(f"{text}0", {"answer": gold}) == float(gold == "0")
        assert task.score("", {"answer": gold}) == 0.0


@needs_sample_data
def test_the_real_folder_has_three_disjoint_splits():
    task = Gsm8kTask(path=str(SAMPLE_DATA / "gsm8k"))
    questions = {
        split: set(task.examples(split)["question"]) for split in ("train", "validation", "test")
    }
    assert {split: len(part) for split, part in questions.items()} == {
        "train": 1800,
        "validation": 200,
        "test": 1319,
    }
    assert len(set.union(*questions.values())) == 1800 + 200 + 1319


@needs_sample_data
def test_no_worked_example_is_a_real_question():
    texts = " ".join(answers("test.jsonl") + answers("train_first2000.jsonl"))
    for shot in SHOTS:
        assert shot.answer.split("\n")[0] not in texts
