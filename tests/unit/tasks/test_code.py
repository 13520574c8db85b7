"""Programs out of completions: a table of how models answer, and texts that are no answer."""

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diversed.tasks.code import complete_function, extract_program

ADD = "def add(a, b):\n    return a + b\n"
PROMPT = 'from typing import List\n\n\ndef total(xs: List[int]) -> int:\n    """Add all.\n    """\n'
BODY = "    result = 0\n    for x in xs:\n        result += x\n    return result\n"


def read_table(kind):
    """Return name -> (completion, names, program) of one kind from the file beside."""
    parts = Path(__file__).with_name("completions.txt").read_text().split("\n=== ")[1:]
    table = {}
    for completion, program in zip(parts[::2], parts[1::2], strict=True):
        head, _, text = completion.partition("\n")
        own_kind, name, *names = head.replace(":", "").split()
        if own_kind == kind:
            assert name not in table
            result = program.removeprefix("gives\n").replace("<prompt>\n", PROMPT)
            table[name] = (text, names, result)
    return table


PROGRAMS = read_table("program") | {
    "crlf": (f"```python\n{ADD}```".replace("\n", "\r\n"), [], ADD),
    "lone_cr": (ADD.replace("\n", "\r"), [], ADD),
    "tabs": (f"```python\n{ADD}```".replace("    ", "\t"), [], ADD),
    "byte_order_mark": (f"\ufeff{ADD}", [], ADD),
    "no_code": ("I cannot help with that.", [], ""),
    "empty": ("", [], ""),
    "blank": (" \n\t\n", [], ""),
}
FUNCTIONS = read_table("function") | {
    "tabs": (BODY.replace("    ", "\t"), [], PROMPT + BODY),
    "crlf": (BODY.replace("\n", "\r\n"), [], PROMPT + BODY),
    "blank_lines_first": (f"\n\n{BODY}", [], PROMPT + BODY),
    "no_code": ("I cannot do that.", [], PROMPT),
    "empty": ("", [], PROMPT),
}


def normal(program):
    return ast.dump(ast.parse(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_a_completion(name):
    text, names, program = PROGRAMS[name]
    assert normal(extract_program(text, names)) == normal(program)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_that_a_completion_completes(name):
    text, _, program = FUNCTIONS[name]
    assert normal(complete_function(PROMPT, text, "total")) == normal(program)


def test_a_continuation_is_left_as_it_is():
    text = '    """No."""\n    x = """\n  a\n"""\n    return x  # é\n'
    assert complete_function(PROMPT, text, "total") == PROMPT + text


def test_a_prompt_without_line_break_at_its_end():
    assert complete_function("def f():\n    'One.'", "    return 1", "f") == (
        "def f():\n    'One.'\n    return 1\n"
    )


@pytest.mark.parametrize("name", ["f(", "a.b", "a|b", "\\", ""])
def test_an_odd_name_is_no_pattern(name):
    assert complete_function(PROMPT, "    return 1\n", name) == f"{PROMPT}    return 1\n"
    assert extract_program(ADD, [name]) == ADD


def test_the_tables_are_there():
    assert len(PROGRAMS) > 40
    assert len(FUNCTIONS) > 25


PIECES = [
    *("```", "```python", "~~~", "\n", "\r\n", "\t", "    ", " ", "def total(xs):", "def f("),
    *("class A:", "return 1", "import math", "from a import (b", "x = 1", '"""', "'''", '"', "'"),
    *("#", "\\", "(", ")", "[DONE]", "[BEGIN]", "<think>", "</think>", ">>> f()", "Here it is:"),
    *("if x:", "@a", "\0", "\ud800", "é"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.text(max_size=60))
def test_every_text_gives_a_text(text):
    assert isinstance(extract_program(text, ["total"]), str)
    assert complete_function(PROMPT, text, "total").replace("\r", "").count(PROMPT) >= 1


@pytest.mark.parametrize(
    "piece", [*PIECES, "a,", "a, ", "import a,", "x = ", "[", "*", "``", '"a', "def f(\n"]
)
def test_long_texts_take_no_long_time(piece):
    text = piece * 20_000
    extract_program(text, ["total"])
    complete_function(PROMPT, text, "total")


def test_mixed_long_text():
    rng = random.Random(0)
    text = "".join(rng.choices(PIECES, k=100_000))
    extract_program(text, ["total"])
    complete_function(PROMPT, text, "total")
