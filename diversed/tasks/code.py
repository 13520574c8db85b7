r"""Takes Python out of completions: fenced, bare, or only the body of a function.

Texts of models are read with regular expressions alone. Python's own parser is made for texts that
mean well: one that is nested deeply enough can bring down the process that parses it.

Nothing here raises, on any text, or decides whether code is right.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent, indent

INDENT = "    "

_PYTHON = frozenset({"", "python", "python3", "py", "py3"})
_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`\n]*?)[ \t]*")
_INLINE_FENCE = re.compile(r"```(?:python3?[ \t]|py[ \t])?[ \t]*([^`\n][^`]*)```")
_THOUGHT_END = "</think>"
_BEGIN = re.compile(r"^[ \t]*\[BEGIN\][ \t]*$", re.MULTILINE)
_DONE = re.compile(r"^[ \t]*\[DONE\]", re.MULTILINE)

_DEFINITION = r"(?:(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[(:]|@\w)"
_NAME = r"[A-Za-z_][\w.]*(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = (
    rf"(?:import[ \t]+{_NAME}(?:[ \t]*,[ \t]*{_NAME})*[ \t]*(?:[#;].*)?$"
    r"|from[ \t]+[\w.]+[ \t]+import\b)"
)
_TARGET = r"[*]?[A-Za-z_][\w.]*(?:\[[^\n]*\])?"
_ASSIGNMENT = (
    rf"(?:{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t]*(?::[^=\n]+)?"
    r"(?:[-+%&|^@]|[*]{1,2}|/{1,2}|<<|>>)?=(?!=))"
)
_START = re.compile(f"{_DEFINITION}|{_IMPORT}|{_ASSIGNMENT}")
_INDENTED_START = re.compile(rf"[ \t]+(?:{_START.pattern})")
_CODE_LINE = re.compile(
    f"{_DEFINITION}|{_IMPORT}|{_ASSIGNMENT}"
    r"|(?:async|if|elif|else|for|while|try|except|finally|with|match)\b.*:"
    r"|(?:return|raise|assert|del|global|nonlocal|pass|break|continue|yield|await)\b"
    r"|[A-Za-z_][\w.]*\(.*[)\](,:\\][ \t]*(?:#.*)?$"
    r"|[#\])}]|\"\"\"|'''"
)
_SCAN = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)|\'\'\'(?:\\.|[^\\])*?(?:\'\'\'|\Z)"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*|\\.|[\[({\])}\n]",
    re.DOTALL,
)
"""Strings, comments, brackets and line breaks; a break inside a string is part of the string."""
_RETURN = re.compile(r"^return\b", re.MULTILINE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[^\n]*(?:\n|$)", re.MULTILINE)
_BOUND = re.compile(
    r"^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)|^([A-Z][A-Z0-9_]*)[ \t]*=(?!=)", re.MULTILINE
)
_IMPORTED = re.compile(r"^(?:from[ \t]+[\w.]+[ \t]+)?import[ \t]+([^#\n]+)", re.MULTILINE)


def extract_program(text: str, names: Sequence[str] = ()) -> str:
    r"""Return the program in a completion.

    Of several fenced blocks it is the last that defines one of `names`, together with those that
    define or import what it uses. Without a fence it is what looks like code, from the first
    definition, import or assignment to the first line of prose after it.

    Args:
        text: A completion.
        names: What the program should define; a preference, no condition.

    Returns:
        Python with `\n` as line break; "" where there is none.

    >>> extract_program("Sure!\n```python\ndef f():\n    return 1\n```\nIt returns 1.")
    'def f():\n    return 1\n'
    """
    text = _answer(text)
    blocks = _fenced(text)
    return _choose(blocks, names) if blocks else _bare(text)


def in_fence(code: str) -> str:
    """Return a program as a fenced block of Python."""
    return f"```python\n{code}\n```"


def complete_function(prompt: str, text: str, entry_point: str) -> str:
    r"""Return the program that a completion makes of a function's signature and docstring.

    A completion may be the rest of the function, as a base model continues the prompt, or code
    that has the function once more, with or without its signature, as a chat model answers.

    Args:
        prompt: Python that ends with the docstring of a function.
        text: A completion of it.
        entry_point: Name of that function.

    Returns:
        Python with `\n` as line break.

    >>> complete_function('def f():\n    "One."\n', "```\nreturn 1\n```", "f")
    'def f():\n    "One."\n    return 1\n'
    """
    text = _answer(text)
    prompt = prompt if prompt.endswith("\n") else prompt + "\n"
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    is_repeated = re.match(rf"\s*(?:async\s+)?def\s+{re.escape(entry_point)}\b", first)
    if first[:1].isspace() and not is_repeated and not _FENCE.fullmatch(first):
        end = next((i for i, line in enumerate(lines) if _FENCE.fullmatch(line)), len(lines))
        return prompt + _as_body("\n".join(lines[:end]))
    blocks = _fenced(text)
    code = _choose(blocks, [entry_point]) if blocks else _bare(text)
    is_whole = re.search(rf"^(?:async\s+)?(?:def\s+)?{re.escape(entry_point)}\s*[(=]", code, re.M)
    if is_whole:
        # The prompt alone is a function, too; a second definition takes its place.
        return f"{''.join(_FUTURE.findall(code))}{prompt}\n{_FUTURE.sub('', code)}"
    return prompt + _as_body(code)


def _answer(text: str) -> str:
    """Return a completion without thoughts and markers, with one kind of line break."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    text = text.rpartition(_THOUGHT_END)[2]
    begin = _BEGIN.search(text)
    text = text[begin.end() :].removeprefix("\n") if begin else text
    done = _DONE.search(text)
    return text[: done.start()] if done else text


@dataclass(frozen=True)
class _Block:
    language: str
    code: str


def _fenced(text: str) -> list[_Block]:
    """Return the fenced blocks; code before a first fence that can only close is one, too."""
    blocks: list[_Block] = []
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    fences = [match for line in lines if (match := _FENCE.fullmatch(line))]
    marker, language, margin = "", "", 0
    if fences and not fences[0][3] and _START.match(first):
        marker = fences[0][2]
    code: list[str] = []
    for line in lines:
        fence = _FENCE.fullmatch(line)
        if marker and fence and fence[2].startswith(marker):
            blocks.append(_Block(language, "\n".join([*code, ""])))
            marker = ""
            if not fence[3]:
                continue
        if fence and not marker:
            marker, margin = fence[2], len(fence[1])
            is_code = _START.match(fence[3])
            language, _, rest = ("", "", fence[3]) if is_code else fence[3].partition(" ")
            language = language.strip("{.}").lower()
            code = [rest] if rest else []
        elif marker:
            lead = len(line) - len(line.lstrip(" \t"))
            code.append(line[min(margin, lead) :])
    if marker:
        blocks.append(_Block(language, "\n".join(code)))
    if not blocks:
        blocks = [_Block("", match) for match in _INLINE_FENCE.findall(text)]
    return blocks


def _choose(blocks: Sequence[_Block], names: Sequence[str]) -> str:
    """Return the block that answers, joined with those that it cannot do without."""
    python = [block.code for block in blocks if block.language in _PYTHON and block.code.strip()]
    candidates = [code for code in python if not code.lstrip().startswith(">>>")] or python
    candidates = candidates or [block.code for block in blocks]
    codes = [dedent(code) for code in candidates]
    wanted = [code for code in codes if _bound_names(code) & set(names)]
    defining = [code for code in codes if _BOUND.search(code)]
    returning = [code for code in codes if _RETURN.search(code)]
    chosen = next(reversed(wanted or returning[:1] or defining or codes[:1]))
    position = len(codes) - 1 - codes[::-1].index(chosen)
    missing = set(re.findall(r"[A-Za-z_]\w*", chosen)) - _bound_names(chosen)
    joined = [code for i, code in enumerate(codes) if i == position or _bound_names(code) & missing]
    return "\n".join(joined) if len(joined) > 1 else candidates[position]


def _bound_names(code: str) -> set[str]:
    """Return the functions, classes, constants and imports of a program's outer level."""
    names = {name for pair in _BOUND.findall(code) for name in pair if name}
    for clause in _IMPORTED.findall(code):
        for item in clause.strip(" \t()\\").split(","):
            words = item.split()
            if words:
                names.add(words[-1] if "as" in words else words[0].partition(".")[0])
    return names


def _bare(text: str) -> str:
    """Return what looks like code in a text without fences."""
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if not _CODE_LINE.match(lines[first]):
        starts = [i for i, line in enumerate(lines) if _START.match(line)]
        indented = [i for i, line in enumerate(lines) if _INDENTED_START.match(line)]
        if not starts and not indented:
            return ""
        first = (starts or indented)[0]
    lines = lines[first:]
    margin = len(lines[0]) - len(lines[0].lstrip(" \t"))
    if margin:
        inside = (not line.strip() or not line[:margin].strip() for line in lines)
        end = next((i for i, is_inside in enumerate(inside) if not is_inside), len(lines))
        lines = [line[margin:] for line in lines[:end]]
    return _without_prose("\n".join(lines))


def _without_prose(code: str) -> str:
    """Cut code before the first line of its outer level that is none."""
    depth, line_start, is_inside = 0, 0, False
    for token in _SCAN.finditer(code + "\n"):
        if token[0] in ("[", "(", "{"):
            depth += 1
        elif token[0] in ("]", ")", "}"):
            depth = max(depth - 1, 0)
        elif token[0] == "\n":
            line = code[line_start : token.start()]
            is_outer = bool(line.strip()) and not line[0].isspace() and not is_inside
            if is_outer and not _CODE_LINE.match(line):
                return code[:line_start]
            line_start, is_inside = token.end(), depth > 0
    return code


def _as_body(code: str) -> str:
    """Return code indented as the body of a function; what follows the body stays as it is."""
    lines = [_spaces_for_tabs(line) for line in _without_prose(code).strip("\n").split("\n")]
    margins = [len(line) - len(line.lstrip(" ")) if line.strip() else -1 for line in lines]
    following = [margin for margin in margins[1:] if margin >= 0]
    if margins[0] == 0:
        # Where the first line alone has lost its indentation, the next ones are too deep for it.
        next_one, least = (following[0], min(following)) if following else (0, 0)
        opens = lines[0].rstrip().endswith(":")
        has_lost = least >= len(INDENT) and (
            not opens or next_one > least or least >= 2 * len(INDENT)
        )
        if not has_lost:
            return indent("\n".join(lines), INDENT) + "\n"
    elif margins[0] == len(INDENT):
        return "\n".join(lines) + "\n"
    end = next((i for i, margin in enumerate(margins) if i and margin == 0), len(lines))
    inner = [margin for margin in margins[1:end] if margin >= 0]
    if inner and margins[0] < len(INDENT) <= min(inner):
        body = [INDENT + lines[0].lstrip(" "), *lines[1:end]]
    else:
        body = indent(dedent("\n".join(lines[:end])), INDENT).split("\n")
    return "\n".join([*body, *lines[end:]]) + "\n"


def _spaces_for_tabs(line: str) -> str:
    lead = line[: len(line) - len(line.lstrip(" \t"))]
    return lead.expandtabs(len(INDENT)) + line[len(lead) :]
