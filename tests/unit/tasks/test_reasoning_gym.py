"""Puzzles of reasoning-gym: disjoint splits, the library's own scores, nothing run as code."""

import builtins
import inspect
import itertools
import re
import sys

import pytest
from composed import composed
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st

from diversed.tasks.base import SPLITS, TaskDataError, score_completions
from diversed.tasks.reasoning_gym import MAX_SEED, ReasoningGymTask
from diversed.tasks.source_scan import evaluating_calls

factory = pytest.importorskip("reasoning_gym.factory", reason="reasoning-gym is not installed")
sympy = pytest.importorskip("sympy")

GENERATORS = ["gsm_symbolic", "chain_sum", "spell_backward"]
FEW = {"num_train": 4, "num_validation": 1, "num_test": 1}
SMALL = {"num_train": 60, "num_validation": 12, "num_test": 12}
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=80)


TASKS = {name: ReasoningGymTask(name, **FEW) for name in GENERATORS}


@pytest.fixture(scope="module", params=GENERATORS)
def task(request):
    return ReasoningGymTask(request.param, **SMALL)


def content(question):
    return " ".join(question.split()).casefold()


def test_splits_have_their_sizes_and_share_nothing(task):
    rows = {split: list(task.examples(split)) for split in SPLITS}
    assert [len(rows[split]) for split in SPLITS] == [60, 12, 12]
    every = [row for split in SPLITS for row in rows[split]]
    for key in (
        lambda row: content(row["question"]),
        lambda row: row["seed"],
        lambda row: row["id"],
    ):
        assert len({key(row) for row in every}) == len(every)


def test_splits_of_other_seeds_and_sizes_share_no_question_either(task):
    name = task.provenance()["generator"]
    questions = {split: set() for split in SPLITS}
    for seed, scale in ((0, 1), (1, 3), (2, 2)):
        sizes = {key: size * scale for key, size in SMALL.items()}
        other = ReasoningGymTask(name, **sizes, seed=seed)
        for split in SPLITS:
            questions[split] |= {content(row["question"]) for row in other.examples(split)}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not questions[one] & questions[other]


def test_rows_are_a_function_of_the_settings(task):
    name = task.provenance()["generator"]
    again = ReasoningGymTask(name, **SMALL)
    backwards = {split: list(again.examples(split)) for split in reversed(SPLITS)}
    for split in SPLITS:
        assert backwards[split] == list(task.examples(split))
    larger = ReasoningGymTask(name, **SMALL | {"num_test": 20})
    assert list(larger.examples("test"))[:12] == list(task.examples("test"))
    other = ReasoningGymTask(name, **SMALL, seed=1)
    assert list(other.examples("test")) != list(task.examples("test"))


def test_rows_are_those_of_the_library(task):
    name = task.provenance()["generator"]
    for row in task.examples("test"):
        chunk, index = divmod(row["seed"], 500)
        entry = factory.create_dataset(name, seed=chunk * 500, size=500)[index]
        assert (row["question"], row["answer"]) == (entry["question"], entry["answer"])


def test_scores_are_those_of_the_library(task):
    name = task.provenance()["generator"]
    for row in task.examples("validation"):
        chunk, index = divmod(row["seed"], 500)
        data = factory.create_dataset(name, seed=chunk * 500, size=500)
        for answer in (
            row["answer"],
            f"{row['answer']}0",
            "7",
            "-7.5",
            "about 12",
            "\u0663",
            "x y",
        ):
            right = min(max(data.score_answer(answer, data[index]), 0.0), 1.0)
            text = f"So it is.\n<answer> {answer} </answer> done"
            assert task.score(text, row) == right
        assert task.score(f"<answer>{row['answer']}</answer>", row) == 1.0
        assert task.reference(row) == row["answer"]


def test_partial_credit_is_the_library_s():
    task = ReasoningGymTask("gsm_symbolic", **SMALL)
    row = task.examples("test")[0]
    assert task.score("<answer>-1234567</answer>", row) == 0.01


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>4</answer>", "4"),
        ("a <answer>\n4 5\n6 </answer> b", "4 5\n6"),
        ("<answer>3</answer> no, <answer>4</answer>", "4"),
        ("<answer>4", "4"),
        ("<answer></answer>", None),
        ("<answer> \n", None),
        ("4", None),
        ("4</answer>", None),
        ("", None),
    ],
)
def test_the_answer_stands_in_the_last_tag(text, answer):
    task = ReasoningGymTask("chain_sum", **SMALL)
    assert task.extract(text) == answer
    if answer is None:
        row = task.examples("test")[0]
        assert (task.score(text, row), type(task.score(text, row))) == (0.0, float)


@settings(max_examples=60)
@given(text=TEXTS, name=st.sampled_from(GENERATORS), is_tagged=st.booleans())
def test_any_text_scores_between_0_and_1(text, name, is_tagged):
    task = TASKS[name]
    row = task.examples("test")[0]
    score = task.score(f"<answer>{text}" if is_tagged else text, row)
    assert type(score) is float
    assert 0.0 <= score <= 1.0


TASKS = {name: ReasoningGymTask(name, **FEW) for name in GENERATORS}


def test_scoring_does_not_need_the_rows_to_have_been_drawn_here():
    row = TASKS["gsm_symbolic"].examples("test")[0]
    fresh = ReasoningGymTask("gsm_symbolic", seed=3)
    assert fresh.score(f"<answer>{row['answer']}</answer>", row) == 1.0


def test_a_scorer_that_changes_its_entry_changes_no_later_score(monkeypatch):
    task = ReasoningGymTask("spell_backward", **SMALL)
    row = task.examples("test")[0]

    def spoil(self, answer, entry):
        is_right = answer == entry["answer"]
        entry["answer"] = "spoilt"
        return float(is_right)

    monkeypatch.setattr(factory.DATASETS["spell_backward"][0], "score_answer", spoil)
    assert [task.score(f"<answer>{row['answer']}", row) for _ in range(2)] == [1.0, 1.0]


@pytest.mark.parametrize(("value", "clipped"), [(1.5, 1.0), (-0.5, 0.0), (1, 1.0)])
def test_scores_are_clipped(monkeypatch, value, clipped):
    task = ReasoningGymTask("spell_backward", **SMALL)
    scorer = factory.DATASETS["spell_backward"][0]
    monkeypatch.setattr(scorer, "score_answer", lambda *_: value)
    score = task.score("<answer>x", task.examples("test")[0])
    assert (score, type(score)) == (clipped, float)


def test_an_answer_that_a_scorer_cannot_read_is_wrong():
    task = ReasoningGymTask("prime_factorization", **SMALL)
    row = task.examples("test")[0]
    chunk, index = divmod(row["seed"], 500)
    data = factory.create_dataset("prime_factorization", seed=chunk * 500, size=500)
    with pytest.raises(ValueError, match="invalid literal"):
        data.score_answer("many", data[index])
    assert task.score("<answer>many</answer>", row) == 0.0
    assert task.score(f"<answer>{row['answer']}</answer>", row) == 1.0


def test_a_scorer_that_fails_on_the_right_answer_is_an_error_of_its_own(monkeypatch):
    task = ReasoningGymTask("spell_backward", **SMALL)
    row = task.examples("test")[0]

    def fail(*_):
        raise KeyError("metadata")

    monkeypatch.setattr(factory.DATASETS["spell_backward"][0], "score_answer", fail)
    (score,) = score_completions(task, ["<answer>x</answer>"], [row])
    assert score.value is None
    assert "KeyError" in score.error


def test_numbers_with_huge_exponents_are_no_answers():
    task = ReasoningGymTask("coin_flip", **FEW)
    row = task.examples("test")[0]
    assert task.score("<answer>1e99999999</answer>", row) == 0.0  # the library would not come back
    assert task.score(f"<answer>{row['answer']}</answer>", row) == 1.0


def test_prompts_ask_for_tags():
    row = TASKS["chain_sum"].examples("test")[0]
    (turn,) = ReasoningGymTask("chain_sum", **SMALL, prompt="chat").prompt(row)
    assert turn["content"].endswith(f"\n\n{row['question']}")
    assert "between <answer> and </answer>" in turn["content"]
    task = ReasoningGymTask("chain_sum", **SMALL, prompt="plain", num_shots=3)
    prompt = task.prompt(row)
    assert prompt.endswith(f"Problem:\n{row['question']}\nSolution:\n")
    assert prompt.count("\nSolution:\n<answer>") == 3
    assert task.stop_strings == ("\nProblem:",)


def test_worked_examples_are_training_rows_and_right():
    task = ReasoningGymTask("spell_backward", **SMALL, prompt="chat", num_shots=4)
    train = {row["question"]: row for row in task.examples("train")}
    *turns, _ = task.prompt(task.examples("test")[0])
    for asked, answered in zip(turns[::2], turns[1::2], strict=True):
        row = train[asked["content"].rpartition("\n\n")[2]]
        assert task.score(answered["content"], row) == 1.0
    assert len(turns) == 8


def test_questions_with_many_right_answers_have_no_reference():
    task = ReasoningGymTask("graph_color", **FEW)
    row = task.examples("test")[0]
    assert row["answer"] is None
    assert task.reference(row) is None
    assert task.score("<answer>{}</answer>", row) == 0.01
    with pytest.raises(ValueError, match=r"data\.num_shots=1"):
        ReasoningGymTask("graph_color", **FEW, num_shots=1)


def test_options_are_the_generator_s_own():
    task = ReasoningGymTask("chain_sum", **SMALL, options={"min_terms": 2, "max_terms": 2})
    assert all(
        row["question"].count("+") + row["question"].count(" - ") <= 2
        for row in task.examples("test")
    )
    assert task.provenance()["options"] == {"min_terms": 2, "max_terms": 2}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gsm_symbolc", {}, r"data\.name=gsm_symbolc.*did you mean gsm_symbolic"),
        ("chainsum", {}, r"did you mean.*chain_sum"),
        ("zzzz", {}, r"it has .*chain_sum.*gsm_symbolic"),
        ("chain_sum", {"max_trms": 2}, r"data\.options\.max_trms.*max_terms"),
        ("chain_sum", {"size": 2}, r"data\.options\.size: chain_sum has no such option"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, r"chain_sum with .*min_terms=9.*max_terms"),
        ("composite", {}, r"composite with data\.options none: "),
    ],
)
def test_wrong_names_and_options_say_what_is_right(name, options, message):
    with pytest.raises(TaskDataError, match=message):
        ReasoningGymTask(name, **SMALL, options=options)


@pytest.mark.parametrize("split", SPLITS)
def test_sizes_below_1_are_refused_by_name(split):
    with pytest.raises(ValueError, match=rf"data\.num_{split}=0: must be at least 1"):
        ReasoningGymTask("chain_sum", **{f"num_{split}": 0})


@pytest.mark.parametrize("seed", [-1, MAX_SEED])
def test_a_seed_that_the_library_cannot_take_is_refused(seed):
    with pytest.raises(ValueError, match=rf"data\.seed={seed}: must be at least 0 and below"):
        ReasoningGymTask("chain_sum", seed=seed)
    assert len(ReasoningGymTask("chain_sum", **SMALL, seed=MAX_SEED - 1).examples("test")) == 12


def test_a_generator_without_enough_questions_says_how_many_it_has():
    task = ReasoningGymTask("coin_flip", num_test=300)
    with pytest.raises(TaskDataError, match=r"num_test=300: coin_flip has only \d+ different"):
        task.examples("test")


def test_unknown_split_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"split='dev'.*train, validation, test"):
        TASKS["chain_sum"].examples("dev")


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(TaskDataError, match=r"pip install 'diversed\[tasks\]'"):
        ReasoningGymTask("chain_sum")


@pytest.mark.parametrize(
    "name",
    [
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    ],
)
def test_generators_whose_scorers_run_answers_are_refused(name):
    with pytest.raises(TaskDataError, match=rf"data\.name={name}: .* as Python code"):
        ReasoningGymTask(name)


EVALUATE_THEIR_OWN_TEXT = {
    "basic_arithmetic": "the sum that it asks",
    "bf": "compile is a compiler of its own, for the programs that it asks about",
    "codeio": "the programs that it asks about",
    "propositional_logic": "parse_expr is a parser of its own",
}


def test_no_scorer_that_mentions_evaluation_is_overlooked():
    pattern = re.compile(r"(?<!def )\b(?:eval|exec|compile|parse_expr|sympify)\(")
    suspects = {
        name
        for name, (data, _) in factory.DATASETS.items()
        if pattern.search(re.sub(r"re\.compile\(", "", inspect.getsource(inspect.getmodule(data))))
    }
    refused = {
        name
        for name, (data, _) in factory.DATASETS.items()
        if evaluating_calls(data, "score_answer")
    }
    assert refused
    assert suspects - refused == EVALUATE_THEIR_OWN_TEXT.keys()


@pytest.mark.parametrize(
    "name",
    [
        "basic_arithmetic",
        "decimal_arithmetic",
        "game_of_life",
        "graph_color",
        "group_anagrams",
        "palindrome_partitioning",
        "polynomial_equations",
        "propositional_logic",
        "rotate_matrix",
        "simple_equations",
    ],
)
def test_what_is_not_refused_runs_no_answer(name, monkeypatch):
    task = ReasoningGymTask(name, num_train=1, num_validation=1, num_test=1)
    row = task.examples("test")[0]
    run = []

    def trap(source, *_, **__):
        run.append(str(source))
        raise SyntaxError

    for module in (builtins, sympy):
        for function in ("eval", "exec", "parse_expr", "sympify"):
            if hasattr(module, function):
                monkeypatch.setattr(module, function, trap)
    texts = ["[['trap']]", "trap", "2 + trap", "{'trap': 1}", '{"1": "trap"}', "trap(1)"]
    scores = score_completions(task, [f"<answer>{text}" for text in texts], [row] * len(texts))
    monkeypatch.undo()
    assert all(score.value is None or score.value < 1 for score in scores)
    assert [source for source in run if "trap" in source] == []


def test_calls_that_run_text_are_found_through_other_functions():
    class Scorer:
        def score(self, text):
            return self._deep(text)

        def _deep(self, text):
            return eval(text)  # noqa: S307 - what the scan must find

        def harmless(self, text):
            return float(text) + len(str(text).strip())

    assert evaluating_calls(Scorer, "harmless") == set()


def test_the_config_builds_the_task():
    cfg = composed(
        "eval",
        "data=reasoning_gym",
        "data.name=chain_sum",
        "data.num_test=5",
        "+data.options.max_terms=3",
    )
    task = instantiate(cfg.data)
    assert task.name == "reasoning_gym_chain_sum"
    assert task.provenance()["options"] == {"max_terms": 3}
    assert len(task.examples("test")) == 5
