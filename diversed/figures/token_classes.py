"""What kind of token a token is, by its text: a guide for the eye, not a grammar."""

import keyword

import pandas as pd

from diversed.records.schema import EMITTED

DIGIT, OPERATOR, WORD = "digit", "operator", "word"
PUNCTUATION, KEYWORD, OTHER = "punctuation", "code keyword", "space, end"
TOKEN_CLASSES = (DIGIT, OPERATOR, WORD, PUNCTUATION, KEYWORD, OTHER)

_SIGNS = frozenset("+-*/=<>×÷·−%^&|~!")
_SPELLED_SIGNS = frozenset({"plus", "minus", "times", "x", "equals"})


def token_class(text: str, *, is_code: bool) -> str:
    """Return which of `TOKEN_CLASSES` a token belongs to.

    Spaces around a token do not count. Digits may carry a sign, separators and a unit sign; a token
    with a letter is a word, and in code a keyword where Python says so; a token of arithmetic and
    comparison signs alone is an operator, and in prose so are "plus", "minus", "times", "x" and
    "equals". Spaces, line breaks and tokens in angle brackets (ends, other specials) are none of
    these.

    Args:
        text: The token, as the tokenizer decodes it alone.
        is_code: Whether the text is a program: then "times" is a name and "return" a keyword.

    >>> [token_class(text, is_code=False) for text in (" 42", "+", " plus", "return", ".", "<eos>")]
    ['digit', 'operator', 'operator', 'word', 'punctuation', 'space, end']
    >>> [token_class(text, is_code=True) for text in (" plus", " return", "==")]
    ['word', 'code keyword', 'operator']
    """
    bare = text.strip()
    if not bare or (bare.startswith("<") and bare.endswith(">") and bare != "<>"):
        return OTHER
    if any(character.isalpha() for character in bare):
        return _class_of_word(bare, is_code=is_code)
    if any(character.isdigit() for character in bare):
        return DIGIT
    return OPERATOR if set(bare) <= _SIGNS else PUNCTUATION


def _class_of_word(bare: str, *, is_code: bool) -> str:
    if is_code:
        return KEYWORD if keyword.iskeyword(bare) else WORD
    return OPERATOR if bare in _SPELLED_SIGNS else WORD


def classes_before(trace: pd.DataFrame, *, is_code: bool) -> pd.Series:
    """Return a class for each emitted entry of a trace: the kind of the token in front of it.

    The token itself must not be looked at: then a class would not be known before it is drawn.
    The first token of a completion is "after the prompt".
    """
    key = ["prompt_id", "sample"]
    emitted = trace[trace["status"].isin(list(EMITTED))].sort_values([*key, "position"])
    kinds = {text: token_class(text, is_code=is_code) for text in emitted["token"].unique()}
    before = emitted["token"].map(kinds).groupby([emitted[name] for name in key]).shift()
    names = ("after " + before).fillna("after the prompt")
    return names.reindex(trace.index)
