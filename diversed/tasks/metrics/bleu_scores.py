"""BLEU and chrF of translations, by the `sacrebleu` library, on its scale of 0 to 100."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from diversed.tasks.metrics.references import is_blank, usable_references


class BleuScores:
    """Sentence BLEU, corpus BLEU and chrF with fixed settings.

    Corpus BLEU is not the mean of sentence BLEU: it pools n-gram counts over the corpus. Sentence
    BLEU counts only the n-gram orders that a sentence is long enough for (sacrebleu's
    `effective_order`); corpus BLEU counts all four.
    """

    def __init__(
        self,
        *,
        target_language: str = "",
        tokenize: str | None = None,
        smoothing: str = "exp",
        lowercase: bool = False,
    ) -> None:
        """Build the scorers.

        Args:
            target_language: Code such as "de"; decides the tokenizer where `tokenize` is None.
            tokenize: Tokenizer of sacrebleu, such as "13a" or "intl"; None takes sacrebleu's own
                choice for the target language (zh, ja-mecab, ko-mecab; otherwise 13a).
            smoothing: What replaces a precision of zero: "exp" (sacrebleu's default), "floor",
                "add-k" or "none".
            lowercase: Whether capitals do not matter.

        Raises:
            ValueError: sacrebleu has no such tokenizer or smoothing, or what a tokenizer needs is
                not installed.
        """
        if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(sorted(BLEU.TOKENIZERS))
            raise ValueError(f"tokenize={tokenize!r}: must be one of {known}, or null")
        if smoothing not in BLEU.SMOOTH_DEFAULTS:
            known = ", ".join(sorted(BLEU.SMOOTH_DEFAULTS))
            raise ValueError(f"smoothing={smoothing!r}: must be one of {known}")

        def bleu(effective_order: bool) -> BLEU:
            try:
                return BLEU(
                    lowercase=lowercase,
                    tokenize=tokenize,
                    trg_lang=target_language,
                    smooth_method=smoothing,
                    effective_order=effective_order,
                )
            except (RuntimeError, ImportError) as error:  # a tokenizer's own library is missing
                asked = f"target_language={target_language!r}, tokenize={tokenize!r}"
                raise ValueError(f"{asked}: {' '.join(str(error).split())}") from error

        self._sentence_bleu = bleu(effective_order=True)
        self._corpus_bleu = bleu(effective_order=False)
        self._chrf = CHRF(lowercase=lowercase)
        for metric in (self._sentence_bleu, self._corpus_bleu, self._chrf):
            metric.corpus_score([""], [[""]])  # sacrebleu has no signature before a first score

    def sentence_bleu(self, prediction: str, references: Sequence[str]) -> float:
        """Return the BLEU of one sentence, in [0, 100].

        Args:
            prediction: Any text; a blank one scores 0.0.
            references: n-grams of any of them count. Blank ones are left out, and without any
                other the score is 0.0.

        Returns:
            sacrebleu's number, rounding above 100 cut off.
        """
        return self._sentence(self._sentence_bleu, prediction, references)

    def sentence_chrf(self, prediction: str, references: Sequence[str]) -> float:
        """Return the chrF of one sentence, in [0, 100]; blank texts as in `sentence_bleu`."""
        return self._sentence(self._chrf, prediction, references)

    def _sentence(self, metric: BLEU | CHRF, prediction: str, references: Sequence[str]) -> float:
        targets = usable_references(references)
        if is_blank(prediction) or not targets:
            return 0.0
        return min(float(metric.sentence_score(prediction, targets).score), 100.0)

    def corpus(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        """Return corpus BLEU and chrF, in [0, 100].

        Args:
            predictions: One text per row; a blank one adds its reference's length and no n-gram.
            references: The references of each row, not necessarily equally many. Blank ones are
                left out (the shortest one would set the length to reach); a row with none but
                blank ones counts as having one empty reference.

        Returns:
            "bleu" and "chrf".

        Raises:
            ValueError: There is no prediction, or not as many predictions as rows of references.
        """
        if not predictions:
            raise ValueError("BLEU: there are no predictions")
        targets = [
            usable_references(row) or [""] for _, row in zip(predictions, references, strict=True)
        ]
        streams: list[list[Any]] = [  # sacrebleu takes None for a reference that a row lacks
            [row[index] if index < len(row) else None for row in targets]
            for index in range(max(map(len, targets)))
        ]
        scores = {
            "bleu": self._corpus_bleu.corpus_score(predictions, streams),
            "chrf": self._chrf.corpus_score(predictions, streams),
        }
        return {name: min(float(score.score), 100.0) for name, score in scores.items()}

    def signatures(self) -> dict[str, str]:
        """Return sacrebleu's signature of each score: the settings that a reported number needs.

        The number of references is that of the last corpus, one before the first.
        """
        self._sentence_bleu.num_refs = self._corpus_bleu.num_refs
        return {
            "bleu": str(self._corpus_bleu.get_signature()),
            "sentence_bleu": str(self._sentence_bleu.get_signature()),
            "chrf": str(self._chrf.get_signature()),
        }
