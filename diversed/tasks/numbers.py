"""Numbers as people and models write them, read exactly.

Values are fractions, so `3.0` equals `3`, `1/2` equals `0.5` and `2.5` does not equal `2`.
"""

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

MAX_DIGITS = 100
"""Longer runs of digits are no numbers that anyone states."""

_INTEGER = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+"
_DECIMAL = rf"(?:(?:{_INTEGER})(?:\.[0-9]+)?|\.[0-9]+)"
_SIGN = r"(?<![A-Za-z0-9)\]}])[-+]"
_CURRENCY = r"[$€£¥]"
_NUMBER = re.compile(
    rf"(?<![A-Za-z0-9])(?:{_SIGN})?{_CURRENCY}?(?:{_SIGN})?"  # -$7 as well as $-7
    rf"(?:(?<!/)(?P<whole>[0-9]+) (?P<top>[0-9]+)/(?P<bottom>[0-9]+)(?![0-9/])"
    rf"|(?<!/)(?P<left>{_DECIMAL})/{_CURRENCY}?(?P<right>{_DECIMAL})(?![0-9/])"
    rf"|(?P<decimal>{_DECIMAL})(?P<exponent>[eE][-+]?[0-9]{{1,3}}(?![A-Za-z0-9]))?)"
)
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"))
_SPACED_THOUSANDS = re.compile(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LATEX_NOISE = re.compile(r"\\[,!;: ]|\\(?=[$%])")


def find_numbers(text: str) -> Iterator[Fraction]:
    """Yield the numbers of a text, in order.

    Understood are thousands commas, decimals, signs (a minus directly before the number, in any
    of its Unicode shapes, unless a number or bracket stands before it), currency signs, fractions
    `1/2`, mixed numbers `1 1/2`, vulgar fractions, powers of ten `1.5e3` and the usual LaTeX of
    them. What surrounds a number (units, `%`, bold markers, a full stop) is no part of it.

    Example:
        >>> [str(number) for number in find_numbers("-$1,200.50, then **1 1/2** of 7%.")]
        ['-2401/2', '3/2', '7']
    """
    for match in _NUMBER.finditer(_plain(text)):
        value = _value(match)
        if value is not None:
            yield value


def first_number(text: str) -> Fraction | None:
    """Return the first number of a text, or None."""
    return next(find_numbers(text), None)


def last_number(text: str) -> Fraction | None:
    """Return the last number of a text, or None."""
    last = None
    for number in find_numbers(text):
        last = number
    return last


def number_text(value: Fraction) -> str:
    """Return a number as text: an integer, a decimal where it ends, else a fraction.

    Example:
        >>> [number_text(Fraction(text)) for text in ("3.0", "5/2", "1/3", "-0.05")]
        ['3', '2.5', '1/3', '-0.05']
    """
    places, power = 0, 1
    while places < MAX_DIGITS and power % value.denominator:
        places, power = places + 1, power * 10
    if power % value.denominator:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * power // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def _plain(text: str) -> str:
    """Return a text with Unicode and LaTeX spellings of numbers replaced by ASCII ones."""
    text = text.translate(_MINUS)
    text = _VULGAR.sub(_spelt_fraction, text).replace("\u2044", "/")
    text = _LATEX_FRACTION.sub(r"\1/\2", text).replace("{,}", ",")
    return _SPACED_THOUSANDS.sub("", _LATEX_NOISE.sub("", text))


def _spelt_fraction(match: re.Match[str]) -> str:
    """Return a vulgar fraction as ` 1/2`, a mixed number where digits stand before it."""
    text = unicodedata.normalize("NFKC", match[0])
    before = match.string[: match.start()][-1:]
    return f" {text}" if before.isdigit() else text


def _value(match: re.Match[str]) -> Fraction | None:
    if sum(character.isdigit() for character in match[0]) > MAX_DIGITS:
        return None
    if match["whole"] is not None:
        value = _ratio(match["top"], match["bottom"])
        value = None if value is None else int(match["whole"]) + value
    elif match["left"] is not None:
        value = _ratio(match["left"], match["right"])
    else:
        value = _decimal(match["decimal"] + (match["exponent"] or ""))
    return -value if value is not None and "-" in match[0].split("e")[0].split("E")[0] else value


def _ratio(top: str, bottom: str) -> Fraction | None:
    divisor = _decimal(bottom)
    return _decimal(top) / divisor if divisor else None


def _decimal(text: str) -> Fraction:
    return Fraction(Decimal(text.replace(",", "")))
