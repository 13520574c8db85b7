"""What every metric says of blank texts, and of one or several references."""

from collections.abc import Sequence


def is_blank(text: str) -> bool:
    """Return whether a text has nothing but white space; a blank prediction scores 0.0."""
    return not text.strip()


def usable_references(references: Sequence[str]) -> list[str]:
    """Return the references that are not blank; a prediction without any of them scores 0.0."""
    return [reference for reference in references if not is_blank(reference)]


def as_reference_lists(references: Sequence[str | Sequence[str]]) -> list[list[str]]:
    """Return one list of references per prediction, where each was given as a text or as several.

    >>> as_reference_lists(["one", ["two", "three"]])
    [['one'], ['two', 'three']]
    """
    return [[given] if isinstance(given, str) else list(given) for given in references]
