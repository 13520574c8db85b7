"""Whether a function would run a text as Python code, read from its source.

A safeguard for scorers of other libraries: a completion must not be run inside this process. It
follows calls by name within one library and does not see code that hides: no sandbox.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType

EVALUATORS = frozenset({"eval", "exec", "compile", "parse_expr", "sympify"})
"""Functions that run a text as Python code; the last two are sympy's."""


def evaluating_calls(owner: type, method: str) -> set[str]:
    """Return which of `EVALUATORS` a method may call, itself or through what it calls.

    Followed are methods of the same object and functions of the same top-level package. A call of
    a function that merely shares a name with one of `EVALUATORS` but belongs to the package is
    followed like any other.

    Args:
        owner: The class.
        method: Name of the method.

    Returns:
        Names; empty where there are none.
    """
    package = owner.__module__.partition(".")[0]
    found: set[str] = set()
    to_read = [getattr(owner, method)]
    seen = set()
    while to_read:
        function = to_read.pop()
        if function in seen:
            continue
        seen.add(function)
        for name, is_attribute in _called_names(function):
            callee = getattr(owner, name, None) if is_attribute else None
            callee = callee or function.__globals__.get(name)
            if isinstance(callee, FunctionType) and callee.__module__.startswith(f"{package}."):
                to_read.append(callee)
            elif name in EVALUATORS:
                found.add(name)
    return found


def _called_names(function: FunctionType) -> Iterator[tuple[str, bool]]:
    """Yield the name of each call in a function, and whether it is an attribute of something."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, False
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr, True
