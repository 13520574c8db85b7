"""WMT: sentences of news and their translations, in either direction.

Source: the shared tasks of the Conference on Machine Translation; default Bojar et al. 2014.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from diversed.tasks.base import Example, TaskDataError
from diversed.tasks.loaded import LoadedTask
from diversed.tasks.loading import ROW_COLUMN, DataSource
from diversed.tasks.metrics.bleu_scores import BleuScores
from diversed.tasks.prompts import PromptTemplate, Shot

logger = logging.getLogger(__name__)

LANGUAGES: Mapping[str, str] = {
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "gu": "Gujarati",
    "hi": "Hindi",
    "ja": "Japanese",
    "kk": "Kazakh",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "ro": "Romanian",
    "ru": "Russian",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
}
"""Code -> name in prompts."""

SENTENCES: Mapping[str, tuple[str, ...]] = {
    "de": (
        "Der Zug nach Hamburg fährt heute eine Stunde später ab.",
        "Die Stadt will bis zum Herbst drei neue Schulen bauen.",
        "Wer den Hund gefunden hat, soll sich bitte bei der Polizei melden.",
    ),
    "en": (
        "The train to Hamburg is leaving an hour later today.",
        "The city wants to build three new schools by the autumn.",
        "Anyone who has found the dog is asked to contact the police.",
    ),
    "fr": (
        "Le train pour Hambourg part une heure plus tard aujourd'hui.",
        "La ville veut construire trois nouvelles écoles d'ici l'automne.",
        "Toute personne ayant trouvé le chien est priée de contacter la police.",
    ),
    "ro": (
        "Trenul spre Hamburg pleacă astăzi cu o oră mai târziu.",
        "Orașul vrea să construiască trei școli noi până în toamnă.",
        "Cine a găsit câinele este rugat să contacteze poliția.",
    ),
}
"""Parallel sentences for worked examples, where both languages of a pair have them."""


class WmtTask(LoadedTask):
    """Sentence BLEU of a translation, divided by 100; corpus BLEU and chrF over a corpus.

    Rows have a column `translation` with one text per language code. `name` holds the direction,
    such as "wmt_de_en", so that tables keep directions apart.
    """

    quality_name = "sentence BLEU"
    max_new_tokens = 128

    def __init__(
        self,
        *,
        source: str = "de",
        target: str = "en",
        hub_id: str = "wmt/wmt14",
        config_name: str | None = None,
        tokenize: str | None = None,
        smoothing: str = "exp",
        lowercase: bool = False,
        **options: Any,
    ) -> None:
        """Set the direction and how translations are compared.

        Args:
            source: Code of the language to translate from.
            target: Code of the language to translate into.
            hub_id: Data set on the hub, such as "wmt/wmt16" for pairs that WMT14 lacks.
            config_name: Its configuration; None: the pair, English last, such as "de-en".
            tokenize: sacrebleu's tokenizer; None: sacrebleu's choice for `target`.
            smoothing: sacrebleu's smoothing of precisions that are zero.
            lowercase: Whether capitals do not matter.
            options: Where rows come from and how they are posed; see `LoadedTask`.

        Raises:
            ValueError: Both languages are the same, or another setting is out of range.
        """
        if source == target:
            raise ValueError(f"data.source={source}, data.target={target}: must differ")
        self._source_language, self._target_language = source, target
        self.name = f"wmt_{source}_{target}"
        self.source = _data_source(source, target, hub_id, config_name)
        self.template = _template(source, target)
        self.shots = _shots(source, target)
        super().__init__(**options)
        self._bleu = BleuScores(
            target_language=target, tokenize=tokenize, smoothing=smoothing, lowercase=lowercase
        )
        for metric, signature in self._bleu.signatures().items():
            logger.info("%s: %s is %s", self.name, metric, signature)

    def example(self, row: Example, split: str) -> Example:
        """Return `id` and `translation`, a text for each of the two languages."""
        translation = row["translation"]
        where = f"{self.name}: row {row[ROW_COLUMN] + 1} ({split})"
        if not isinstance(translation, Mapping):
            kind = type(translation).__name__
            raise TaskDataError(
                f"{where} has a {kind} in the column translation; it must hold one text per "
                "language code"
            )
        texts = {code: text for code, text in translation.items() if isinstance(text, str)}
        for role, code in (("source", self._source_language), ("target", self._target_language)):
            if code not in texts:
                raise TaskDataError(
                    f"{where} has no text in the language data.{role}={code}; found "
                    f"{', '.join(texts) or 'none'}"
                )
        return {
            "id": f"{self.name}/{split}/{row[ROW_COLUMN]}",
            "translation": {
                code: texts[code] for code in (self._source_language, self._target_language)
            },
        }

    def posed_text(self, example: Example) -> str:
        """Return the text to translate, without white space around it."""
        text: str = example["translation"][self._source_language]
        return text.strip()

    def reference(self, example: Example) -> str:
        """Return the row's own translation."""
        text: str = example["translation"][self._target_language]
        return text

    def score(self, text: str, example: Example) -> float:
        """Return sentence BLEU / 100; 0.0 for a blank text."""
        return self._bleu.sentence_bleu(text, [self.reference(example)]) / 100

    def corpus_metrics(self, texts: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Return corpus `bleu` and `chrf`, in [0, 100]."""
        if not texts:
            return {}
        return self._bleu.corpus(texts, [[self.reference(example)] for example in examples])

    def provenance(self) -> dict[str, Any]:
        """Return what `LoadedTask` returns, and sacrebleu's signatures."""
        return super().provenance() | {"sacrebleu": self._bleu.signatures()}


def _data_source(source: str, target: str, hub_id: str, config_name: str | None) -> DataSource:
    if config_name is None:
        pair = sorted((source, target), key=lambda code: (code == "en", code))
        config_name = "-".join(pair)
    return DataSource(
        hub_id=hub_id,
        config_name=config_name,
        columns=("translation",),
        splits={"train": "train", "validation": "validation", "test": "test"},
    )


def _template(source: str, target: str) -> PromptTemplate:
    from_name, to_name = _language(source), _language(target)
    return PromptTemplate(
        instruction=(
            f"Translate the text from {from_name} into {to_name}. Write nothing but the "
            "translation."
        ),
        text_label=from_name,
        answer_label=to_name,
    )


def _language(code: str) -> str:
    return LANGUAGES.get(code, f"the language {code}")


def _shots(source: str, target: str) -> tuple[Shot, ...]:
    pairs = zip(SENTENCES.get(source, ()), SENTENCES.get(target, ()), strict=False)
    return tuple(Shot(text, answer) for text, answer in pairs)
