"""ROUGE F-measures of texts, by the `rouge_score` library."""

import re
from collections.abc import Sequence
from typing import Any

from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]
from rouge_score.tokenizers import DefaultTokenizer  # type: ignore[import-untyped]

from diversed.tasks.metrics.references import is_blank, usable_references

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
NEWLINES = ("keep", "sentences")

_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)(?<!\b[A-Z])"  # no titles, no initials
    r"([.!?][\"'\u201d\u2019)\]]*)\s+"
    r"(?=[\"'\u201c\u2018(\[]*[^\Wa-z_])"  # the next word starts with a capital or a digit
)


def split_sentences(text: str) -> str:
    r"""Return a text with one sentence a line.

    A sentence ends at a line break, or at `.`, `!` or `?` (and closing quotes or brackets) before
    white space and a word that does not start with a small letter; not after a title such as "Mr."
    or an initial. It needs no model, unlike `nltk.sent_tokenize`, which knows more abbreviations.

    >>> split_sentences('He met Mr. J. Doe. "Who?" "Me." It cost 2.5 euros, i.e. little.')
    'He met Mr. J. Doe.\n"Who?"\n"Me."\nIt cost 2.5 euros, i.e. little.'
    """
    return _SENTENCE_END.sub(r"\1\n", text)


class RougeScores:
    """ROUGE F-measures with fixed settings.

    ROUGE-1, ROUGE-2 and ROUGE-L read line breaks as spaces; ROUGE-Lsum takes each line as one
    sentence. `rouge_score` knows only the letters a-z and digits; everything else is a space.

    Attributes:
        settings: What a reported score depends on: stemmer and newlines.
    """

    def __init__(
        self,
        rouge_types: Sequence[str] = ROUGE_TYPES,
        *,
        use_stemmer: bool = True,
        newlines: str = "sentences",
    ) -> None:
        """Build the scorer.

        Args:
            rouge_types: Some of `ROUGE_TYPES`.
            use_stemmer: Whether words are compared by their Porter stems.
            newlines: "keep" scores texts as they are; "sentences" puts one sentence a line, in
                predictions and references, where ROUGE-Lsum needs it.

        Raises:
            ValueError: An unknown type, or an unknown value of `newlines`.
        """
        for name in rouge_types:
            if name not in ROUGE_TYPES:
                raise ValueError(f"rouge type {name!r}: must be one of {', '.join(ROUGE_TYPES)}")
        if newlines not in NEWLINES:
            raise ValueError(f"newlines={newlines!r}: must be one of {', '.join(NEWLINES)}")
        self.settings: dict[str, Any] = {"use_stemmer": use_stemmer, "newlines": newlines}
        self._types = tuple(rouge_types)
        # a tokenizer of its own: `RougeScorer` logs a line for each one that it makes itself
        self._scorer = RougeScorer(self._types, tokenizer=DefaultTokenizer(use_stemmer))
        self._splits = newlines == "sentences" and "rougeLsum" in self._types

    def score(self, prediction: str, references: Sequence[str]) -> dict[str, float]:
        """Return the F-measure of one prediction by type, in [0, 1].

        Args:
            prediction: Any text; a blank one scores 0.0.
            references: The best one counts, for each type on its own. Blank ones are left out, and
                without any other the score is 0.0.

        Returns:
            Type -> F-measure.
        """
        targets = usable_references(references)
        if is_blank(prediction) or not targets:
            return dict.fromkeys(self._types, 0.0)
        if self._splits:
            prediction = split_sentences(prediction)
            targets = [split_sentences(target) for target in targets]
        scores = self._scorer.score_multi(targets, prediction)
        return {name: float(scores[name].fmeasure) for name in self._types}

    def means(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Return the mean of each type over a corpus; the score of no prediction is undefined.

        Args:
            predictions: One text per row.
            references: The references of each row.

        Returns:
            Type -> mean F-measure, in [0, 1].

        Raises:
            ValueError: There is no prediction, or not as many predictions as rows of references.
        """
        if not predictions:
            raise ValueError("ROUGE: there are no predictions")
        scores = [
            self.score(prediction, targets)
            for prediction, targets in zip(predictions, references, strict=True)
        ]
        return {name: sum(score[name] for score in scores) / len(scores) for name in self._types}
