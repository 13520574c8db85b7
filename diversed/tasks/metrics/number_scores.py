"""Exact match of the number that a text states."""

from collections.abc import Sequence

from diversed.tasks.gsm8k import stated_number
from diversed.tasks.metrics.references import is_blank, usable_references


def number_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1.0 where a prediction states the number of a reference, else 0.0.

    Args:
        prediction: Any text; `diversed.tasks.gsm8k.stated_number` finds its number. A blank text,
            or one without a number, scores 0.0.
        references: Numbers, or solutions that state one. Without a number a reference matches
            nothing.

    Returns:
        0.0 or 1.0. Values are compared exactly: `3.0` is `3`, `2.5` is not `2`.

    >>> number_match("That makes **$1,234.50**.", ["1234.5"])
    1.0
    """
    if is_blank(prediction):
        return 0.0
    stated = stated_number(prediction)
    if stated is None:
        return 0.0
    return float(any(stated == stated_number(text) for text in usable_references(references)))
