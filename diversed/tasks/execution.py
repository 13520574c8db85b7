"""Judges programs by their tests: in sandboxes, in parallel, each program once.

Only what a solution is and does counts as its failure. Where the sandbox itself fails, the verdict
is an error, which is neither right nor wrong.

What a verdict "passed" rests on: after the last test, the judge inside the sandbox writes a random
word to a pipe; see `sandbox_judge` for how the word is kept from the solution. So leaving early
with status 0, catching assertions, patching built-in functions or the modules that tests import,
redefining `len` for the tests, objects that equal everything, and reading the expected values off
the caller's frame all fail.

What this does not stop: a solution that knows the tests by heart or recognises them by their
arguments; one that redefines a function of the task's own that tests use as a yardstick; one that
breaks the interpreter open, or compiles code under the name of a library's file to get at frames.
"""

import ast
import functools
import hashlib
import json
import logging
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from diversed.core.checks import check_at_least_one
from diversed.tasks.sandbox import Limits, Report, Sandbox
from diversed.tasks.sandbox_init import TIMED_OUT
from diversed.tasks.sandbox_judge import GUARD_NAME

logger = logging.getLogger(__name__)

MAX_VERDICTS = 1 << 17
"""Verdicts that a judge remembers."""


@dataclass(frozen=True)
class Program:
    """A solution and what must hold of it.

    Attributes:
        solution: Python that defines what the tests use; any text.
        tests: Python that runs after it, in order; each must end without an exception.
        names: What it is to define. Tests see a built-in function, such as `len`, even where the
            solution has one of its own, unless it is named here.
    """

    solution: str
    tests: tuple[str, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What became of a program.

    Attributes:
        reason: "passed"; or why not: "assertion", "exception", "exit" (it ended before the last
            test did), "timeout", "memory", "output" (too much of it), "crash" (by a signal); or
            "error": the sandbox failed, and nothing is known about the program.
        detail: One line on it; parts of it may come from the program.
    """

    reason: str
    detail: str = ""


class CodeJudge:
    """Runs programs in sandboxes and remembers the verdicts; safe to use from several threads."""

    def __init__(
        self,
        *,
        allow_code_execution: bool = False,
        limits: Limits | None = None,
        max_workers: int | None = None,
        tool: str | None = None,
    ) -> None:
        """Make sure that programs may be run, and can be.

        Args:
            allow_code_execution: Whether the user allows it.
            limits: What each program may use; None for the defaults.
            max_workers: Programs at a time; None for one per CPU.
            tool: See `Sandbox`.

        Raises:
            PermissionError: It is not allowed.
            SandboxUnavailableError: It is not possible here.
            ValueError: A number is out of range.
        """
        if not allow_code_execution:
            raise PermissionError(
                "data.allow_code_execution=false: the rewards of this task come from running code "
                "that a model has written. It is run in a sandbox; set "
                "data.allow_code_execution=true to allow it"
            )
        if max_workers is not None:
            check_at_least_one("data.max_workers", max_workers)
        self._sandbox = Sandbox(limits or Limits(), tool)
        self._max_workers = max_workers or os.cpu_count() or 1
        self._verdicts: dict[str, Verdict] = {}
        self._lock = threading.Lock()

    def judge(self, programs: Sequence[Program]) -> list[Verdict]:
        """Return the verdict on each program, in order; equal programs are run once.

        Args:
            programs: Any number of them.
        """
        keys = [_key(program) for program in programs]
        with self._lock:
            known = {key: self._verdicts[key] for key in keys if key in self._verdicts}
        new = {
            key: program for key, program in zip(keys, programs, strict=True) if key not in known
        }
        if len(new) == 1:
            fresh = [self._run(program) for program in new.values()]
        else:
            with ThreadPoolExecutor(min(self._max_workers, len(new)) or 1) as pool:
                fresh = list(pool.map(self._run, new.values()))
        found = dict(zip(new, fresh, strict=True))
        with self._lock:
            for key, verdict in found.items():
                if verdict.reason != "error":
                    self._verdicts[key] = verdict
            while len(self._verdicts) > MAX_VERDICTS:
                del self._verdicts[next(iter(self._verdicts))]
        return [known.get(key) or found[key] for key in keys]

    def describe(self) -> dict[str, Any]:
        """Return what makes the sandboxes, and their limits, for the manifest."""
        return {"sandbox": self._sandbox.tool, "limits": asdict(self._sandbox.limits)}

    def _run(self, program: Program) -> Verdict:
        word = secrets.token_hex()
        try:
            tests, imports = _prepared(program.tests)
            job = {
                "word": word,
                "solution": program.solution,
                "tests": tests,
                "imports": imports,
                "names": program.names,
            }
            report = self._sandbox.run(job)
        except SyntaxError as error:
            return Verdict("error", f"a test is no Python: {error}")
        except (OSError, subprocess.TimeoutExpired) as error:
            return Verdict("error", f"the sandbox failed: {error}")
        return _verdict(report, word)


def _verdict(report: Report, word: str) -> Verdict:
    """Return what a report means; only a line that begins with the word is the judge's."""
    if not report.is_ready:
        lines = report.log.strip().splitlines() or [f"status {report.exit_code}"]
        return Verdict("error", f"the sandbox failed: {lines[-1]}")
    if report.overuse is not None:
        return Verdict(report.overuse, f"it used too much {report.overuse}")
    line = report.verdict.decode(errors="replace")
    if line == f"{word} passed\n":
        return Verdict("passed")
    if line.startswith(f"{word} failed "):
        _, _, step, name, message = line.rstrip("\n").split(" ", 4)
        place = "the solution" if step == "0" else f"test {step}"
        kinds = {"AssertionError": "assertion", "MemoryError": "memory", "SystemExit": "exit"}
        return Verdict(kinds.get(name, "exception"), f"{name} in {place}: {message}")
    if report.exit_code == TIMED_OUT:
        return Verdict("timeout", "it was still running at the end of its time")
    if report.exit_code > 128:
        number = report.exit_code - 128
        known = {item.value: item.name for item in signal.Signals}
        return Verdict("crash", f"ended by {known.get(number, number)}")
    return Verdict("exit", f"it ended with status {report.exit_code} before the last test did")


def _key(program: Program) -> str:
    """Return a key that equal programs share, and no others."""
    text = json.dumps([program.solution, program.tests, program.names])  # escapes surrogates
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=4096)
def _prepared(tests: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return tests with guarded comparisons, and the names of the modules that they import."""
    trees = [ast.parse(text.replace("\r\n", "\n")) for text in tests]
    imports: dict[str, None] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            imports.update((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports[node.module] = None
    return [ast.unparse(_GuardComparisons().visit(tree)) for tree in trees], list(imports)


class _GuardComparisons(ast.NodeTransformer):
    """Passes both sides of each comparison through the judge's guard: `a == b` as `g(a) == g(b)`.

    The guard returns a value unchanged unless its class has methods of comparison that the
    solution made: an object that equals everything would pass any `assert f(x) == y`.
    """

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        node.left = self._guarded(node.left)
        node.comparators = [self._guarded(side) for side in node.comparators]
        return node

    @staticmethod
    def _guarded(side: ast.expr) -> ast.expr:
        if isinstance(side, ast.Constant):
            return side
        name = ast.Name(id=GUARD_NAME, ctx=ast.Load())
        return ast.fix_missing_locations(
            ast.copy_location(ast.Call(func=name, args=[side], keywords=[]), side)
        )
