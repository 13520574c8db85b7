"""Verdicts on programs that mean no harm, refusals, and failures that are the sandbox's own."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest
from machine_needs import FAULTS, needs_sandbox

from diversed.tasks import execution, sandbox, sandbox_tools
from diversed.tasks.execution import CodeJudge, Program, Verdict
from diversed.tasks.sandbox import (
    TOOLS,
    Limits,
    Report,
    Sandbox,
    SandboxUnavailableError,
    fault_of,
)

RIGHT = "def double(x):\n    return 2 * x\n"


@pytest.fixture(scope="module")
def judge():
    return CodeJudge(allow_code_execution=True, limits=Limits(timeout_s=20))


def verdict_on(judge, solution, *tests):
    (verdict,) = judge.judge([Program(solution, tests)])
    return verdict


HARMLESS = {
    "prints": "print('double')\ndef double(x):\n    print(x)\n    return 2 * x",
    "main_block": f"{RIGHT}if __name__ == '__main__':\n    print(double(int(input())))",
    "carriage_returns": "def double(x):\r\n    return 2 * x\r\n",
    "tabs": "def double(x):\n\treturn 2 * x",
    "lambda": "double = lambda x: 2 * x",
    "future": f"from __future__ import annotations\n{RIGHT}",
    "own_exceptions": (
        "import traceback\n"
        "def double(x):\n"
        "    try: raise ValueError(x)\n"
        "    except ValueError: traceback.print_exc(); traceback.format_exc()\n"
        "    return 2 * x"
    ),
    "frames_of_the_library": (
        "import enum, logging, typing, warnings\n"
        "from collections import namedtuple\n"
        "from dataclasses import dataclass\n"
        "Pair = namedtuple('Pair', 'a b')\n"
        "Color = enum.Enum('Color', 'RED BLUE')\n"
        "class Typed(typing.NamedTuple):\n    value: int\n"
        "@dataclass\nclass Record:\n    value: int\n"
        "def double(x):\n"
        "    logging.getLogger('double').warning('%s', x)\n"
        "    warnings.warn('careful')\n"
        "    return Typed(Pair(x, Record(x).value).b).value * Color.BLUE.value"
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def double(x):\n"
        "    with ThreadPoolExecutor(4) as pool: return sum(pool.map(lambda y: y, [x, x]))"
    ),
    "coroutines": (
        "import asyncio\n"
        "async def later(x):\n    await asyncio.sleep(0)\n    return 2 * x\n"
        "def double(x):\n    return asyncio.run(later(x))"
    ),
    "other_process": (
        "import subprocess, sys\n"
        "def double(x):\n"
        "    code = f'print(2 * {x})'\n"
        "    return int(subprocess.run([sys.executable, '-c', code], capture_output=True).stdout)"
    ),
    "own_files": (
        "import tempfile\n"
        "def double(x):\n"
        "    with open('number', 'w') as file: file.write(str(x))\n"
        "    with tempfile.TemporaryFile('w+') as file: file.write('0')\n"
        "    return 2 * int(open('number').read())"
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(20000)\n"
        "def double(x, depth=10000):\n"
        "    return double(x, depth - 1) if depth else 2 * x"
    ),
    "collector": "import gc\ndef double(x):\n    gc.collect()\n    return 2 * x",
}


@needs_sandbox
@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_passes(judge, name):
    verdict = verdict_on(judge, HARMLESS[name], "assert double(3) == 6", "assert double(0) == 0")
    assert verdict == Verdict("passed")


@needs_sandbox
@pytest.mark.parametrize(
    ("solution", "test"),
    [
        ("from collections import Counter; f = lambda: Counter('ab')", "f() == {'a': 1, 'b': 1}"),
        ("from collections import deque; f = lambda: deque([1])", "list(f()) == [1]"),
        ("from collections import OrderedDict; f = lambda: OrderedDict(a=1)", "f() == dict(a=1)"),
        ("from fractions import Fraction; f = lambda: Fraction(2, 4)", "f() == 0.5"),
        ("from decimal import Decimal; f = lambda: Decimal('2.0')", "f() == 2"),
        ("from datetime import date; f = lambda: date(2020, 1, 2)", "str(f()) == '2020-01-02'"),
        ("class Own(list): pass\nf = lambda: Own([1, (2, {3: {4}})])", "f() == [1, (2, {3: {4}})]"),
        ("class Own:\n    def __init__(self): self.x = 3\nf = Own", "f().x == 3"),
        ("f = lambda: None", "f() is None"),
        ("def f():\n    x = []\n    x.append(x)\n    return x", "len(f()) == 1 and f() != 2"),
        ("def f():\n    return range(3)", "f() == range(3) and 2 in f()"),
        ("def f():\n    return float('nan')", "f() != f()"),
        ("f = {2: 3}.values", "list(f()) == [3]"),
        ("def f():\n    return 2", "1 < f() <= 2 < 3"),
    ],
)  # fmt: skip
def test_comparisons_mean_what_they_say(judge, solution, test):
    assert verdict_on(judge, solution, f"assert {test}") == Verdict("passed")
    assert verdict_on(judge, solution, f"assert not ({test})").reason == "assertion"


@needs_sandbox
@pytest.mark.parametrize(("names", "reason"), [(("sum",), "passed"), (("f",), "exception")])
def test_a_built_in_name_is_the_solutions_only_if_it_is_asked_for(judge, names, reason):
    program = Program("def sum(a, b):\n    return a - b", ("assert sum(3, 2) == 1",), names)
    assert judge.judge([program])[0].reason == reason


@needs_sandbox
def test_a_class_of_the_tests_may_compare(judge):
    test = (
        "class Near:\n"
        "    def __init__(self, value): self.value = value\n"
        "    def __eq__(self, other): return abs(self.value - other) < 0.1\n"
        "assert Near(6.01) == double(3)\n"
    )
    assert verdict_on(judge, RIGHT, test).reason == "passed"
    assert verdict_on(judge, RIGHT, test.replace("6.01", "7")).reason == "assertion"


@needs_sandbox
@pytest.mark.parametrize(
    ("solution", "reason", "detail"),
    [
        ("def double(x):\n    return x", "assertion", "AssertionError in test 1: ''"),
        ("def double(x):\n    return x / 0", "exception", "ZeroDivisionError in test 1"),
        ("def double(x) return x", "exception", "SyntaxError in the solution"),
        ("def triple(x):\n    return x", "exception", "NameError in test 1"),
        ("import numpy_is_not_there", "exception", "ModuleNotFoundError in the solution"),
        ("raise ValueError('a\\nb é')", "exception", r"'a\nb \xe9'"),
        ("raise SystemExit(1)", "exit", "SystemExit in the solution"),
        ("import os\nos._exit(3)", "exit", "status 3"),
        ("import os\nos.kill(os.getpid(), 11)", "crash", "SIGSEGV"),
        ("x = bytearray(10**10)", "memory", "MemoryError in the solution"),
        ("", "exception", "NameError in test 1"),
    ],
)
def test_the_reason_is_named(judge, solution, reason, detail):
    verdict = verdict_on(judge, solution, "assert double(2) == 4")
    assert verdict.reason == reason
    assert detail in verdict.detail


@needs_sandbox
def test_the_second_test_counts(judge):
    solution = "def double(x):\n    return 4"
    verdict = verdict_on(judge, solution, "assert double(2) == 4", "assert double(3) == 6")
    assert verdict == Verdict("assertion", "AssertionError in test 2: ''")


@needs_sandbox
def test_nothing_is_wrong_with_a_program_whose_tests_are_broken(judge):
    assert verdict_on(judge, RIGHT, "assert double(") == Verdict(
        "error", "a test is no Python: '(' was never closed (<unknown>, line 1)"
    )
    missing = verdict_on(judge, RIGHT, "import numpy_is_not_there\nassert double(1) == 2")
    assert missing.reason == "error"
    assert "numpy_is_not_there" in missing.detail


@needs_sandbox
def test_a_failure_of_the_machine_is_an_error_and_not_remembered(monkeypatch):
    own = CodeJudge(allow_code_execution=True)
    program = Program(RIGHT, ("assert double(1) == 2",))

    def refuse(*arguments, **options):
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    (verdict,) = own.judge([program])
    assert verdict.reason == "error"
    assert "no more processes" in verdict.detail
    monkeypatch.undo()
    assert own.judge([program]) == [Verdict("passed")]


@needs_sandbox
def test_a_sandbox_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", "raise OSError('no namespace')")
    (verdict,) = CodeJudge(allow_code_execution=True).judge([Program(RIGHT, ())])
    assert verdict == Verdict("error", "the sandbox failed: OSError: no namespace")


@needs_sandbox
def test_a_sandbox_that_hangs_is_an_error(monkeypatch):
    monkeypatch.setattr(sandbox, "START_S", 0.5)
    monkeypatch.setattr(sandbox, "_BOOTSTRAP", "import time\ntime.sleep(1000)")
    own = CodeJudge(allow_code_execution=True, limits=Limits(timeout_s=0.5))
    start = time.monotonic()
    (verdict,) = own.judge([Program(RIGHT, ())])
    assert verdict.reason == "error"
    assert time.monotonic() - start < 30


@needs_sandbox
def test_a_program_is_run_once(monkeypatch):
    runs = []
    run = Sandbox.run
    monkeypatch.setattr(Sandbox, "run", lambda self, job: runs.append(job) or run(self, job))
    own = CodeJudge(allow_code_execution=True)
    right, wrong = Program(RIGHT, ("assert double(1) == 2",)), Program(RIGHT, ("assert 0",))
    verdicts = own.judge([right, wrong, right])
    assert [verdict.reason for verdict in verdicts] == ["passed", "assertion", "passed"]
    assert own.judge([wrong, right]) == [verdicts[1], verdicts[0]]
    assert own.judge([]) == []
    assert len(runs) == 2


@needs_sandbox
def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(execution, "MAX_VERDICTS", 2)
    own = CodeJudge(allow_code_execution=True)
    own.judge([Program(f"x = {n}", ()) for n in range(3)])
    assert len(own._verdicts) == 2


@needs_sandbox
def test_from_several_threads(judge):
    reasons = []
    program = Program(RIGHT, ("assert double(1) == 2",))
    threads = [
        threading.Thread(target=lambda: reasons.append(judge.judge([program])[0].reason))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reasons == ["passed"] * 4


@needs_sandbox
def test_no_file_descriptor_stays_open(judge):
    before = len(os.listdir("/proc/self/fd"))
    judge.judge([Program(f"# {n}\n{RIGHT}", ("assert double(1) == 2",)) for n in range(4)])
    assert len(os.listdir("/proc/self/fd")) == before


@needs_sandbox
def test_setup_runs_after_the_solution_and_is_seen_by_tests(judge):
    assert verdict_on(judge, RIGHT, "four = double(2)", "assert four == 4").reason == "passed"


@needs_sandbox
def test_time_in_which_the_machine_stands_still_does_not_count():
    # A sandbox whose first process is stopped is one whose machine stands still.
    own = Sandbox(Limits(timeout_s=1.5))
    reports = []
    solution = "import time\nfor _ in range(10): time.sleep(0.05)"
    job = {"word": "w", "solution": solution, "tests": [], "imports": [], "names": []}
    tag = f"# stop me {os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "_BOOTSTRAP_JUDGE", f"{sandbox._BOOTSTRAP_JUDGE}{tag}\n")
        thread = threading.Thread(target=lambda: reports.append(own.run(job)))
        thread.start()
        names = []
        while len(names) < 3:  # the tool, the first process and the judge
            names = [
                name for name in os.listdir("/proc") if name.isdigit() and tag in text_of(name)
            ]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for name in names:
                with suppress(ProcessLookupError):
                    os.kill(int(name), number)
            time.sleep(2 if number == signal.SIGSTOP else 0)
        thread.join()
    assert reports[0].verdict == b"w passed\n"


def text_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""


def test_off_unless_allowed():
    with pytest.raises(PermissionError, match=r"data\.allow_code_execution=true"):
        CodeJudge()


def test_refused_where_nothing_can_isolate(monkeypatch):
    monkeypatch.setattr(sandbox, "fault_of", lambda tool: f"{tool} is broken")
    with pytest.raises(SandboxUnavailableError) as caught:
        sandbox.find_tool.__wrapped__()
    text = str(caught.value)
    assert "unshare is broken" in text
    assert "Install bubblewrap" in text
    assert "\n" not in text


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_that_is_missing_is_no_tool(tool, monkeypatch):
    monkeypatch.setattr(sandbox_tools.shutil, "which", lambda name: None)
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    assert fault_of.__wrapped__(tool) == "not installed"


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    assert fault_of.__wrapped__("unshare") == "needs Linux, this is darwin"


@needs_sandbox
@pytest.mark.parametrize("tool", [tool for tool in TOOLS if FAULTS[tool] is None])
def test_a_tool_that_does_not_isolate_is_found_out(tool, monkeypatch):
    command = sandbox.namespace_command(tool, 1 << 20)
    open_network = [word for word in command if word not in ("--net", "--unshare-net")]
    monkeypatch.setattr(sandbox, "namespace_command", lambda *arguments: open_network)
    assert fault_of.__wrapped__(tool) == "AssertionError: it sees the network"


@pytest.mark.parametrize(
    "report",
    [
        Report(True, b"passed\n", 0, None, ""),
        Report(True, b"other passed\n", 0, None, ""),
        Report(True, b"word passed\nmore", 0, None, ""),
        Report(True, b"junk word passed\n", 0, None, ""),
        Report(True, b"word passed", 0, None, ""),
        Report(True, b"\xff\xfe", 0, None, ""),
        Report(True, b"", 0, None, ""),
        Report(True, b"word passed\n", 0, "output", ""),
    ],
)
def test_only_the_exact_line_is_a_pass(report):
    assert execution._verdict(report, "word").reason in {"exit", "output"}
    assert (
        execution._verdict(Report(True, b"word passed\n", 0, None, ""), "word").reason == "passed"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_s": 0}, r"data\.timeout_s=0: must be at least 0\.1"),
        ({"timeout_s": float("nan")}, r"data\.timeout_s=nan"),
        ({"timeout_s": float("inf")}, r"data\.timeout_s=inf"),
        ({"memory_mb": 10}, r"data\.memory_mb=10: must be at least 256"),
        ({"num_processes": 2}, r"data\.num_processes=2"),
        ({"file_mb": 0}, r"data\.file_mb=0"),
        ({"output_kb": 0}, r"data\.output_kb=0"),
    ],
)
def test_limits_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Limits(**settings)


@needs_sandbox
def test_least_limits_suffice():
    limits = Limits(timeout_s=20, memory_mb=256, num_processes=4, file_mb=1, output_kb=1)
    assert verdict_on(CodeJudge(allow_code_execution=True, limits=limits), RIGHT).reason == "passed"


def test_number_of_workers_is_checked():
    with pytest.raises(ValueError, match=r"data\.max_workers=0"):
        CodeJudge(allow_code_execution=True, max_workers=0)
