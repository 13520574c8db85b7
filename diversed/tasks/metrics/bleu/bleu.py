"""BLEU as a module of `evaluate`: load it with `diversed.tasks.metrics.load_metric("bleu")`."""

from collections.abc import Sequence
from typing import Any

import evaluate

from diversed.tasks.metrics.bleu_scores import BleuScores
from diversed.tasks.metrics.info import text_metric_info
from diversed.tasks.metrics.references import as_reference_lists


class Bleu(evaluate.Metric):
    """Corpus BLEU, mean sentence BLEU and corpus chrF, in [0, 100], with sacrebleu's signatures.

    References are texts or lists of texts. `compute` takes `target_language`, `tokenize`,
    `smoothing` and `lowercase` as `diversed.tasks.metrics.bleu_scores.BleuScores` does.
    """

    def _info(self) -> evaluate.MetricInfo:
        return text_metric_info(
            description="Corpus BLEU, mean sentence BLEU and chrF by sacrebleu.",
            citation="Post (2018): A Call for Clarity in Reporting BLEU Scores.",
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str | Sequence[str]],
        target_language: str = "",
        tokenize: str | None = None,
        smoothing: str = "exp",
        lowercase: bool = False,
    ) -> dict[str, Any]:
        scores = BleuScores(
            target_language=target_language,
            tokenize=tokenize,
            smoothing=smoothing,
            lowercase=lowercase,
        )
        targets = as_reference_lists(references)
        corpus = scores.corpus(predictions, targets)
        signatures = scores.signatures()
        sentences = [
            scores.sentence_bleu(prediction, row)
            for prediction, row in zip(predictions, targets, strict=True)
        ]
        return {
            **corpus,
            "sentence_bleu": sum(sentences) / len(sentences),
            "bleu_signature": signatures["bleu"],
            "sentence_bleu_signature": signatures["sentence_bleu"],
            "chrf_signature": signatures["chrf"],
        }
