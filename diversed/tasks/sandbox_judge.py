"""The judge inside a sandbox: runs a solution and its tests, and says at the end that all passed.

It shares an interpreter with code that may want a better verdict than it deserves. So

- its verdict carries a random word that only it and the reader of its pipe know;
- it sits in a thread of its own. Solution and tests are started by built-in functions alone, so
  that no frame of the judge lies below theirs, and no name they can reach leads to it;
- whatever it needs after the solution's first line was looked up before it;
- an audit hook, which nothing can take out again, refuses the ways around that: frames, the
  garbage collector's lists, tracing, `ctypes`, hand-made code objects;
- tests see the built-in functions and their own imports as they were before the solution ran, and
  fail on values that compare by methods of the solution's own making, or stand for one that does.

Like `sandbox_init`, it runs in an interpreter that sees the standard library alone; the rest of
the project uses its text and its constants.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import queue
import sys
import weakref
from _thread import stack_size, start_new_thread
from collections import deque
from itertools import repeat
from types import (
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)

TYPE_CHECKING = False  # `typing` would take longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

READY = b"ready\n"
"""Written before the solution's first line; where it is missing, the sandbox itself failed."""

GUARD_NAME = "__plain_value__"
"""What tests call around both sides of their comparisons; see `execution.guard_comparisons`."""

STACK_BYTES = 16 << 20
MAX_DETAIL = 200

_COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_LIBRARY_COMPARING = frozenset(
    {
        ("collections", "Counter"),
        ("enum", "Flag"),
        ("fractions", "Fraction"),
        ("numbers", "Complex"),
        ("numbers", "Real"),
    }
)
"""Classes of the library that may compare by methods in Python; `unittest.mock.ANY` may not."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not one of the interpreter's static types
_MAX_DEPTH = 50

_REFUSED_EVENTS = frozenset(
    {
        "gc.get_objects",
        "gc.get_referents",
        "gc.get_referrers",
        "sys._current_exceptions",
        "sys._current_frames",
        "sys.setprofile",
        "sys.settrace",
    }
)
_LIBRARY_EVENTS = frozenset({"sys._getframe", "code.__new__"})
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_REFUSED_MODULES = frozenset({"_ctypes", "_testcapi", "_testinternalcapi", "_testlimitedcapi"})
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_LENDERS = frozenset({_LIBRARY + "inspect.py", _LIBRARY + "traceback.py"})
"""Files of the library that would hand the frames of callers to anyone."""


def judge(job: dict[str, Any], verdict_fd: int) -> None:
    """Run a solution and its tests, write `READY` and one line of verdict, and end the process.

    The line is the job's word, then "passed", or "failed", the number of the step (0 is the
    solution) and what was raised there.

    Args:
        job: `word`; `solution`, a text; `tests`, texts that run after it in order; `imports`, the
            names of the modules that the tests import; `names`, built-in names that the solution
            may define anew for the tests.
        verdict_fd: Where to write.

    Raises:
        ImportError: The tests import what is not there.
        SyntaxError: A test is no Python.
    """
    write, leave, getpid, kind, copy, text_of = os.write, os._exit, os.getpid, type, dict, ascii
    own_pid = getpid()
    word = job["word"].encode()
    get_name = vars(type)["__name__"].__get__
    get_arguments = vars(BaseException)["args"].__get__
    raised: list[Any] = []
    stack_size(STACK_BYTES)

    solution = ModuleType("solution")
    solution_scope = vars(solution)
    run_solution = _prepare([job["solution"]], solution_scope)
    test_file = f"<test {os.urandom(8).hex()}>"
    tests = [compile(text, test_file, "exec", dont_inherit=True) for text in job["tests"]]
    tests_scope: dict[str, Any] = {}
    tests_builtins = _tests_builtins(job["imports"], test_file)
    run_tests = _prepare(tests, tests_scope)
    num_tests = len(tests)
    kept_names = tests_builtins.keys() - set(job["names"])

    sys.modules.update(solution=solution, __main__=ModuleType("__main__"))
    sys.addaudithook(_make_audit_hook(raised))
    write(verdict_fd, READY)

    failed_step = None
    if run_solution() < 1:
        failed_step = 0
    else:
        for key, value in copy(solution_scope).items():
            if kind(key) is str and key not in kept_names:
                tests_scope[key] = value
        tests_scope["__builtins__"] = tests_builtins
        num_passed = run_tests()
        if num_passed < num_tests:
            failed_step = num_passed + 1
    if failed_step is None and getpid() == own_pid:
        write(verdict_fd, word + b" passed\n")
        leave(0)
    name, message = "SystemExit", ""
    if raised:
        name = get_name(raised[0])
        for part in get_arguments(raised[1])[:1]:
            if kind(part) is str:
                message = part[:MAX_DETAIL]
    write(verdict_fd, word + f" failed {failed_step} {name} {text_of(message)}\n".encode())
    leave(0)


def _prepare(steps: Sequence[str | CodeType], scope: dict[str, Any]) -> Callable[[], int]:
    """Return a function that runs steps on a new thread and returns how many of them passed.

    The thread is `any(map(exec, steps, ...))`, without a Python frame of its own. A step that
    raises ends it, and so the position in the list of steps tells what passed; one more step, which
    cannot fail, tells whether the last one did. The object `execute` lives exactly as long as the
    thread, and so its end tells of the thread's.
    """
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start, call, wait = start_new_thread, any, done.get
    execute = functools.partial(exec)
    watch = weakref.ref(execute, done.put)
    pending: Any = iter([*steps, compile("None", "<end>", "exec")])
    work = [(map(execute, pending, repeat(scope)), watch)]
    count_pending = pending.__length_hint__
    num_steps = len(steps)

    def run() -> int:
        steps, watch = work.pop()
        start(call, (steps,))
        del steps
        wait()
        del watch
        return num_steps - count_pending()

    return run


def _tests_builtins(imports: Sequence[str], test_file: str) -> dict[str, Any]:
    """Return the built-in names for tests, out of reach of whoever patches `builtins` or a module.

    What tests import comes as a copy that was made before the solution ran.
    """
    copies: dict[str, ModuleType] = {}
    for name in imports:
        module = importlib.import_module(name)
        if "." not in name:
            copies[name] = ModuleType(name)
            vars(copies[name]).update(vars(module))
    original_import = builtins.__import__

    def import_copy(name: str, *details: Any) -> ModuleType:
        return copies[name] if name in copies else original_import(name, *details)

    return vars(builtins) | {"__import__": import_copy, GUARD_NAME: _make_guard(test_file)}


def _make_guard(test_file: str) -> Callable[[Any], Any]:
    """Return a function that returns its argument, unless that compares as the solution pleases.

    Methods of comparison may come from the interpreter, some classes of the library, and the tests.
    The items of containers are looked at, too.
    """
    kind, failure, modules = type, AssertionError, sys.modules
    is_python, is_native = FunctionType, (WrapperDescriptorType, MethodDescriptorType)
    get_bases = vars(type)["__mro__"].__get__
    get_members = vars(type)["__dict__"].__get__
    get_flags = vars(type)["__flags__"].__get__
    get_name = vars(type)["__qualname__"].__get__
    get_contents = vars(ModuleType)["__dict__"].__get__
    pairs, pair = dict.items, tuple.__iter__

    def parts(value: dict[Any, Any]) -> Iterator[Any]:
        for both in pairs(value):
            yield from pair(both)

    views: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()))
    iterable: tuple[Any, ...] = (list, tuple, set, frozenset, deque, *views)
    containers: dict[type, Callable[[Any], Iterator[Any]]] = {
        base: base.__iter__ for base in iterable
    }
    containers[dict] = parts
    proxies = (MappingProxyType, weakref.ProxyType, weakref.CallableProxyType)

    def is_known(method: Any, owner: type) -> bool:
        if kind(method) is not is_python:
            return kind(method) in is_native and method.__objclass__ is owner
        file = method.__code__.co_filename
        place = (get_members(owner).get("__module__"), get_name(owner))
        if file == test_file or place not in _LIBRARY_COMPARING:
            return bool(file == test_file)
        return file.startswith(_LIBRARY) and get_contents(modules[place[0]])[place[1]] is owner

    def check(value: Any, depth: int) -> None:
        iterate = None
        for base in get_bases(kind(value)):
            if kind(base) is kind:
                iterate = iterate or containers.get(base)
            if not get_flags(base) & _HEAP_TYPE:
                if base in proxies:
                    raise failure("a tested value stands for another one")
                continue
            members = get_members(base)
            for name in _COMPARING:
                if name in members and not is_known(members[name], base):
                    raise failure("a tested value has methods of comparison of its own")
        if iterate is not None and depth < _MAX_DEPTH:
            for item in iterate(value):
                own = kind(item)
                if own is not int and own is not str and own is not float:
                    check(item, depth + 1)

    def guard(value: Any) -> Any:
        check(value, 0)
        return value

    return guard


def _make_audit_hook(raised: list[Any]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return a hook that refuses what leads to the judge, and notes what ended a thread.

    Args:
        raised: Is set to class and value of the latest exception that nobody caught.
    """
    refused, no_module, look = RuntimeError, ImportError, sys._getframe

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sys._getframe" and arguments[0].f_code is hook_code:
            return  # the hook's own look, below
        if event in _LIBRARY_EVENTS or (
            event == "object.__getattr__" and arguments[1] in _FRAME_ATTRIBUTES
        ):
            caller = look(0).f_back
            file = "" if caller is None else caller.f_code.co_filename
            is_lent = file in _LENDERS and event == "sys._getframe"
            if is_lent or not file.startswith((_LIBRARY, "<frozen ")):
                raise refused("frames and code objects are out of reach here")
        elif event in _REFUSED_EVENTS or event.startswith("ctypes."):
            raise refused(f"{event} is out of reach here")
        elif event == "import" and arguments[0] in _REFUSED_MODULES:
            raise no_module(f"{arguments[0]} is out of reach here")
        elif event == "sys.unraisablehook":
            raised[:] = arguments[1].exc_type, arguments[1].exc_value

    hook_code = hook.__code__
    return hook
