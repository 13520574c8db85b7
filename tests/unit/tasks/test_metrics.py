"""The metrics against the libraries themselves, brute force and hand-counted values."""

import itertools
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from diversed.tasks.metrics import METRICS, load_metric, metric_folder
from diversed.tasks.metrics.bleu_scores import BleuScores
from diversed.tasks.metrics.estimators import pass_at_k
from diversed.tasks.metrics.number_scores import number_match
from diversed.tasks.metrics.references import as_reference_lists, is_blank, usable_references
from diversed.tasks.metrics.rouge_scores import (
    NEWLINES,
    ROUGE_TYPES,
    RougeScores,
    split_sentences,
)

BLANKS = ["", " ", "\n\t \r\n", "\u00a0", "\u2003\u2028"]
PAIRS = [
    ("the cat sat on the mat", ["the cat sat on the mat"]),
    ("The cats were sitting. They ate!", ["The cat sat. It was eating."]),
    ("one two three\nfour five six", ["four five six\none two three"]),
    ("a b c d e f", ["a b x d e f", "a c e", "f e d c b a"]),
    ("Zażółć gęślą jaźń \U0001f600 42", ["zażółć 42 \u202e gęślą"]),
    ("no match here", ["something else entirely"]),
    ("...!!!", ["...!!!"]),
    ("x", ["x"]),
]
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=60)
"""Any text, lone surrogates and control characters included."""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load metrics through `evaluate`, which writes nowhere but into a temporary folder."""
    import evaluate

    folder = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", folder / "modules")
        patch.setattr(sys, "path", [*sys.path])
        yield lambda name, **options: load_metric(
            name, cache_dir=str(folder / "metrics"), keep_in_memory=True, **options
        )
    for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
        del sys.modules[name]


# Blank texts and references


@pytest.mark.parametrize("text", BLANKS)
def test_blank_is_white_space_alone(text):
    assert is_blank(text)
    assert usable_references([text, " a ", text]) == [" a "]


def test_references_are_texts_or_lists_of_texts():
    assert as_reference_lists(("a", ["b"], ("c", "d"))) == [["a"], ["b"], ["c", "d"]]


# ROUGE


@pytest.mark.parametrize("use_stemmer", [True, False])
@pytest.mark.parametrize(("prediction", "references"), PAIRS)
def test_rouge_is_that_of_the_library(prediction, references, use_stemmer):
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=use_stemmer)
    by_reference = [scorer.score(reference, prediction) for reference in references]
    right = {name: max(score[name].fmeasure for score in by_reference) for name in ROUGE_TYPES}
    scores = RougeScores(use_stemmer=use_stemmer, newlines="keep")
    assert scores.score(prediction, references) == right


def test_rouge_of_a_pair_that_is_counted_by_hand():
    scores = RougeScores(use_stemmer=False).score("the cat sat here", ["the cat ran here now"])
    # 3 common words of 4 and 5; 1 common pair of 3 and 4; common subsequence: the cat here
    assert scores == pytest.approx(
        {"rouge1": 2 / 3, "rouge2": 2 / 7, "rougeL": 2 / 3} | {"rougeLsum": 2 / 3}
    )


def test_the_stemmer_is_a_setting():
    prediction, references = "cats running", ["cat runs"]
    assert RougeScores(use_stemmer=True).score(prediction, references)["rouge1"] == 1.0
    assert RougeScores(use_stemmer=False).score(prediction, references)["rouge1"] == 0.0


def test_newlines_decide_the_sentences_of_lsum_and_nothing_else():
    prediction, reference = "Dogs bark. Cats purr.", "Cats purr. Dogs bark."
    kept = RougeScores(newlines="keep").score(prediction, [reference])
    split = RougeScores(newlines="sentences").score(prediction, [reference])
    assert kept["rougeLsum"] == kept["rougeL"] == 0.5
    assert split["rougeLsum"] == 1.0
    lines = RougeScorer(["rougeLsum"], use_stemmer=True).score(
        "Cats purr.\nDogs bark.", "Dogs bark.\nCats purr."
    )
    assert split["rougeLsum"] == lines["rougeLsum"].fmeasure
    assert {name: kept[name] for name in ROUGE_TYPES[:3]} == {
        name: split[name] for name in ROUGE_TYPES[:3]
    }


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? 4.", ["One.", "Two!", "Three?", "4."]),
        ("He said \u201cGo.\u201d She left.", ["He said \u201cGo.\u201d", "She left."]),
        ("One.\nTwo three\nFour", ["One.", "Two three", "Four"]),
        (
            "Mr. Smith, Dr. No and Mrs. J. K. Poe met.",
            ["Mr. Smith, Dr. No and Mrs. J. K. Poe met."],
        ),
        ("It cost 2.5 euros, e.g. less. Élan won.", ["It cost 2.5 euros, e.g. less.", "Élan won."]),
        ("No end", ["No end"]),
        ("", [""]),
    ],
)
def test_sentences_of_texts(text, sentences):
    assert split_sentences(text).split("\n") == sentences


def test_several_references_count_by_the_best_of_each_type():
    references = ["a b c", "a x b y c z"]
    scores = RougeScores(use_stemmer=False, newlines="keep")
    one, other = (scores.score("a b c x y z", [reference]) for reference in references)
    assert one["rouge2"] > other["rouge2"]
    assert one["rouge1"] < other["rouge1"]
    both = scores.score("a b c x y z", references)
    assert both == {name: max(one[name], other[name]) for name in ROUGE_TYPES}


@pytest.mark.parametrize("references", [[], [""], [" ", "\n"]])
def test_rouge_without_a_reference_is_0(references):
    assert RougeScores().score("a b c", references) == dict.fromkeys(ROUGE_TYPES, 0.0)


@pytest.mark.parametrize("prediction", BLANKS)
def test_rouge_of_a_blank_prediction_is_the_float_0(prediction):
    for references in (["a b c"], [""], [prediction], ["a b c", ""]):
        scores = RougeScores().score(prediction, references)
        assert scores == dict.fromkeys(ROUGE_TYPES, 0.0)
        assert {type(score) for score in scores.values()} == {float}


def test_rouge_of_a_text_without_letters_is_the_float_0():
    scores = RougeScores().score("\u4f60\u597d", ["\u4f60\u597d"])  # the library knows a-z and 0-9
    assert {(score, type(score)) for score in scores.values()} == {(0.0, float)}


def test_rouge_means_are_over_predictions():
    scores = RougeScores(["rouge1"])
    assert scores.means(["a", "b", ""], [["a"], ["a"], ["a"]]) == {"rouge1": pytest.approx(1 / 3)}
    with pytest.raises(ValueError, match="no predictions"):
        scores.means([], [])
    with pytest.raises(ValueError, match="shorter"):
        scores.means(["a", "b"], [["a"]])


def test_unknown_settings_of_rouge_list_the_known_ones():
    with pytest.raises(ValueError, match=r"'rouge3'.*rouge1, rouge2, rougeL, rougeLsum"):
        RougeScores(["rouge3"])
    with pytest.raises(ValueError, match=r"newlines='nltk'.*keep, sentences"):
        RougeScores(newlines="nltk")


def test_making_a_rouge_scorer_logs_nothing(caplog):
    with caplog.at_level(0):
        RougeScores()
    assert caplog.records == []


@given(prediction=TEXTS, reference=TEXTS, newlines=st.sampled_from(NEWLINES))
def test_rouge_of_any_text_is_between_0_and_1(prediction, reference, newlines):
    for score in RougeScores(newlines=newlines).score(prediction, [reference]).values():
        assert type(score) is float
        assert 0.0 <= score <= 1.0


# BLEU and chrF


@pytest.mark.parametrize("smoothing", ["exp", "floor", "add-k", "none"])
@pytest.mark.parametrize(("prediction", "references"), PAIRS)
def test_sentence_bleu_is_that_of_the_library(prediction, references, smoothing):
    right = sacrebleu.sentence_bleu(prediction, references, smooth_method=smoothing).score
    assert BleuScores(smoothing=smoothing).sentence_bleu(prediction, references) == min(right, 100)


@pytest.mark.parametrize(("prediction", "references"), PAIRS)
def test_sentence_chrf_is_that_of_the_library(prediction, references):
    right = sacrebleu.sentence_chrf(prediction, references).score
    assert BleuScores().sentence_chrf(prediction, references) == right


def test_corpus_scores_are_those_of_the_library():
    predictions = [prediction for prediction, _ in PAIRS]
    references = [references for _, references in PAIRS]
    streams = [
        [row[index] if index < len(row) else None for row in references] for index in range(3)
    ]
    scores = BleuScores().corpus(predictions, references)
    assert scores["bleu"] == sacrebleu.corpus_bleu(predictions, streams).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(predictions, streams).score
    assert 0 < scores["bleu"] < 100


def test_bleu_of_a_pair_that_is_counted_by_hand():
    # 5, 3, 2 and 1 common n-grams of 6, 5, 4 and 3
    score = BleuScores().sentence_bleu("a b c d x f", ["a b c d e f"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_corpus_bleu_is_not_the_mean_of_sentences():
    scores = BleuScores()
    predictions, references = ["a b c d e", "x y"], [["a b c d e"], ["p q"]]
    assert scores.corpus(predictions, references)["bleu"] != pytest.approx(50.0, abs=1)
    assert scores.sentence_bleu("a b c d e", ["a b c d e"]) == 100.0
    assert scores.sentence_bleu("x y", ["p q"]) == 0.0


def test_a_perfect_sentence_is_100_and_not_more():
    assert sacrebleu.sentence_bleu("a b c d", ["a b c d"]).score > 100  # the library's rounding
    assert BleuScores().sentence_bleu("a b c d", ["a b c d"]) == 100.0
    assert BleuScores().corpus(["a b c d"], [["a b c d"]])["bleu"] == 100.0


@pytest.mark.parametrize("prediction", BLANKS)
def test_bleu_of_a_blank_prediction_is_the_float_0(prediction):
    scores = BleuScores(smoothing="add-k")
    for references in (["a b c"], [""], [prediction], []):
        for score in (
            scores.sentence_bleu(prediction, references),
            scores.sentence_chrf(prediction, references),
        ):
            assert (score, type(score)) == (0.0, float)
        corpus = scores.corpus([prediction], [references])
        assert corpus == {"bleu": 0.0, "chrf": 0.0}
        assert {type(score) for score in corpus.values()} == {float}


def test_a_blank_reference_does_not_shorten_what_must_be_said():
    scores = BleuScores()
    for references in (["a b c d e f g h", ""], ["", "a b c d e f g h", " "]):
        assert scores.sentence_bleu("a b c d", references) == pytest.approx(100 * 2.718281828**-1)
        assert scores.corpus(["a b c d"], [references])["bleu"] < 40
    assert sacrebleu.sentence_bleu("a b c d", ["a b c d e f g h", ""]).score > 99


def test_without_a_reference_words_count_against_the_corpus():
    scores = BleuScores()
    assert scores.sentence_bleu("a b c", [""]) == scores.sentence_bleu("a b c", []) == 0.0
    predictions = ["a b c d e", "p q r s t"]
    with_blank = scores.corpus(predictions, [["a b c d e"], [" "]])["bleu"]
    assert with_blank == pytest.approx(50.0)
    assert with_blank == sacrebleu.corpus_bleu(predictions, [["a b c d e", ""]]).score


def test_a_corpus_without_predictions_is_refused():
    with pytest.raises(ValueError, match="no predictions"):
        BleuScores().corpus([], [])
    with pytest.raises(ValueError, match="shorter"):
        BleuScores().corpus(["a", "b"], [["a"]])


def test_signatures_are_those_of_the_library():
    scores = BleuScores(smoothing="floor", lowercase=True)
    version = f"version:{sacrebleu.__version__}"
    assert scores.signatures() == {
        "bleu": f"nrefs:1|case:lc|eff:no|tok:13a|smooth:floor[0.10]|{version}",
        "sentence_bleu": f"nrefs:1|case:lc|eff:yes|tok:13a|smooth:floor[0.10]|{version}",
        "chrf": f"nrefs:1|case:lc|eff:yes|nc:6|nw:0|space:no|{version}",
    }
    scores.corpus(["a", "b"], [["a", "c"], ["b", "d"]])
    assert all(text.startswith("nrefs:2|") for text in scores.signatures().values())


def test_the_tokenizer_follows_the_target_language_unless_set():
    chinese = ("\u4f60\u597d\u4e16\u754c\u5417", ["\u4f60\u597d\u4e16\u754c\u554a"])
    right = BLEU(trg_lang="zh", effective_order=True).sentence_score(*chinese).score
    assert BleuScores(target_language="zh").sentence_bleu(*chinese) == right > 0
    assert BleuScores(target_language="de").sentence_bleu(*chinese) == 0.0
    assert "tok:zh" in BleuScores(target_language="zh").signatures()["bleu"]
    assert "tok:intl" in BleuScores(target_language="de", tokenize="intl").signatures()["bleu"]


def test_unknown_settings_of_bleu_list_the_known_ones():
    with pytest.raises(ValueError, match=r"tokenize='14a'.*13a.*intl.*null"):
        BleuScores(tokenize="14a")
    with pytest.raises(ValueError, match=r"smoothing='add-1'.*add-k, exp, floor, none"):
        BleuScores(smoothing="add-1")


def test_a_tokenizer_without_its_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ValueError, match=r"target_language='ja'.*pip install sacrebleu\[ja\]"):
        BleuScores(target_language="ja")


def test_making_a_bleu_scorer_logs_nothing(caplog):
    with caplog.at_level(0):
        BleuScores().sentence_bleu("a", ["a"])
    assert caplog.records == []


@given(
    prediction=TEXTS,
    references=st.lists(TEXTS, max_size=3),
    smoothing=st.sampled_from(["exp", "floor", "add-k", "none"]),
)
def test_bleu_of_any_text_is_between_0_and_100(prediction, references, smoothing):
    scores = BleuScores(smoothing=smoothing)
    numbers = [
        scores.sentence_bleu(prediction, references),
        scores.sentence_chrf(prediction, references),
        *scores.corpus([prediction], [references]).values(),
    ]
    for number in numbers:
        assert type(number) is float
        assert 0.0 <= number <= 100.0


# Numbers


@pytest.mark.parametrize(
    ("prediction", "references", "score"),
    [
        ("It is 18.", ["18"], 1.0),
        ("9 * 2 = 18\n#### 18.00", ["She makes 9 * 2 = 18.\n#### 18"], 1.0),
        ("1,234.5", ["1234.50"], 1.0),
        ("0.1", ["0.10"], 1.0),
        ("2.5", ["2"], 0.0),
        ("18", ["17", "18"], 1.0),
        ("18", ["17", "", "many"], 0.0),
        ("many", ["many"], 0.0),
        ("18", [], 0.0),
        ("0", [""], 0.0),
        *[(blank, ["0", blank], 0.0) for blank in BLANKS],
    ],
)
def test_number_match_of_texts(prediction, references, score):
    found = number_match(prediction, references)
    assert (found, type(found)) == (score, float)


@given(prediction=TEXTS, references=st.lists(TEXTS, max_size=3))
def test_number_match_of_any_text_is_0_or_1(prediction, references):
    found = number_match(prediction, references)
    assert type(found) is float
    assert found in (0.0, 1.0)


# pass@k


def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample():
    for num_samples in range(1, 8):
        for num_correct, k in itertools.product(range(num_samples + 1), range(1, num_samples + 1)):
            subsets = list(itertools.combinations(range(num_samples), k))
            good = sum(min(subset) < num_correct for subset in subsets)
            right = float(Fraction(good, len(subsets)))
            assert pass_at_k(num_samples, num_correct, k) == right


def test_pass_at_k_keeps_its_digits_for_many_samples():
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert 1 - 9_999 / 10_000 != 1e-4  # the plain formula does not
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(2_000, 3, 1_000) == float(1 - Fraction(1000 * 999 * 998, 2000 * 1999 * 1998))


@pytest.mark.parametrize(("n", "c", "k"), [(0, 0, 1), (3, 0, 0), (3, 0, 4), (3, 4, 1), (3, -1, 1)])
def test_numbers_that_cannot_be_are_refused(n, c, k):
    with pytest.raises(ValueError, match="must be"):
        pass_at_k(n, c, k)


# The modules of `evaluate`


def test_every_metric_has_a_folder_that_evaluate_can_load():
    for name in METRICS:
        assert (metric_folder(name) / f"{name}.py").is_file()
    with pytest.raises(ValueError, match=r"metric='meteor'.*rouge"):
        metric_folder("meteor")


@pytest.mark.parametrize("name", METRICS)
def test_every_module_is_a_metric_that_says_what_it_takes(load, name):
    module = load(name)
    assert module.module_type == "metric"
    assert module.name == name
    assert "predictions" in module.inputs_description


def test_the_rouge_module_gives_the_numbers_of_the_library(load):
    predictions, references = ["The cats ran.", "", "a b"], ["The cat ran off.", "x", "a b"]
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    scores = [scorer.score(r, p) for p, r in zip(predictions, references, strict=True)]
    right = {name: sum(row[name].fmeasure for row in scores) / 3 for name in ROUGE_TYPES}
    module = load("rouge")
    assert module.compute(predictions=predictions, references=references) == pytest.approx(right)
    several = [["The cat ran off.", ""], ["x"], ["q", "a b"]]
    assert module.compute(predictions=predictions, references=several) == pytest.approx(right)
    plain = module.compute(
        predictions=["cats"], references=["cat"], use_stemmer=False, rouge_types=["rouge1"]
    )
    assert plain == {"rouge1": 0.0}
    lines = {"predictions": ["A b. C d."], "references": ["C d. A b."]}
    assert module.compute(**lines)["rougeLsum"] == 1.0
    assert module.compute(**lines, newlines="keep")["rougeLsum"] == 0.5


def test_the_bleu_module_gives_the_numbers_of_the_library(load):
    predictions = ["the cat sat on the mat", "", "ein Test \u00fc"]
    references = ["the cat sat on a mat", "x y", "ein Test \u00fc"]
    module = load("bleu")
    scores = module.compute(predictions=predictions, references=references)
    assert scores["bleu"] == BLEU().corpus_score(predictions, [references]).score
    assert scores["chrf"] == CHRF().corpus_score(predictions, [references]).score
    sentences = [
        sacrebleu.sentence_bleu(prediction, [reference]).score
        for prediction, reference in zip(predictions, references, strict=True)
    ]
    assert scores["sentence_bleu"] == pytest.approx(sum(sentences) / 3)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    several = module.compute(predictions=["A b"], references=[["a b", "c"]], lowercase=True)
    assert several["sentence_bleu"] == 100.0
    assert several["sentence_bleu_signature"].startswith("nrefs:2|case:lc|eff:yes")


def test_the_number_match_module_is_the_share_of_matches(load):
    module = load("number_match")
    predictions = ["#### 3", "So 2.5", ""]
    assert module.compute(predictions=predictions, references=["3.0", "2", "1"]) == {
        "number_match": pytest.approx(1 / 3)
    }
    assert module.compute(predictions=predictions, references=[["3"], ["2", "5/2"], [""]]) == {
        "number_match": pytest.approx(2 / 3)
    }


def test_the_pass_at_k_module_is_the_mean_over_problems(load):
    module = load("pass_at_k")
    passed = [[True, False, False], [False, False, False], [True, True, True]]
    scores = module.compute(predictions=passed, k=[1, 2])
    assert scores == pytest.approx({"pass@1": (1 / 3 + 0 + 1) / 3, "pass@2": (2 / 3 + 0 + 1) / 3})
    with pytest.raises(ValueError, match="k=4: must be at least 1 and at most the 3 samples"):
        module.compute(predictions=passed, k=[4])


def test_metrics_load_offline_with_nothing_but_an_empty_folder(tmp_path):
    code = """
import socket, warnings
warnings.simplefilter("error")
def refuse(*_): raise AssertionError("a metric asked for the network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from diversed.tasks.metrics import METRICS, load_metric
for name in METRICS:
    load_metric(name)
print(load_metric("rouge").compute(predictions=["a", ""], references=["a", "b"])["rouge1"])
"""
    home = {name: str(tmp_path) for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | home | {"HF_EVALUATE_OFFLINE": "1"},
    )
    assert done.stdout == "0.5\n", done.stderr
    assert (tmp_path / "modules" / "evaluate_modules").is_dir()


def test_importing_the_pure_functions_does_not_import_evaluate():
    code = (
        "import sys, diversed.tasks.metrics, diversed.tasks.metrics.bleu_scores, "
        "diversed.tasks.metrics.estimators, diversed.tasks.metrics.rouge_scores\n"
        "sys.stdout.write(' '.join({'evaluate', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
