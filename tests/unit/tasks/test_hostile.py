"""Programs that want to do harm or to cheat: each scores 0, in time, and leaves nothing behind.

The programs stand in `hostile_programs.txt`. None of them runs where no sandbox can be made.
"""

import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from diversed.tasks import execution, sandbox, sandbox_judge
from diversed.tasks.execution import CodeJudge, Program
from diversed.tasks.sandbox import TOOLS, Limits, fault_of

TIMEOUT_S = 1.0
TEST = "assert answer(1) == 2"
RIGHT = "def answer(x):\n    return x + 1\n"


def read_programs():
    """Return name -> (solution, tests, allowed reasons) of the programs in the file beside."""
    text = Path(__file__).with_name("hostile_programs.txt").read_text()
    programs = {}
    for part in text.split("\n### ")[1:]:
        head, _, body = part.partition("\n")
        if head == "test":
            list(programs.values())[-1][1].append(body)
        else:
            name, _, reasons = head.partition(": ")
            programs[name] = (body, [], set(reasons.split()))
    return programs


PROGRAMS = read_programs() | {
    "deep_nesting": ("x = " + "(" * 10**5 + ")" * 10**5, [], {"exception", "memory", "crash"}),
    "deep_operators": ("x = " + "-" * 10**6 + "1", [], {"exception", "memory", "crash"}),
    "zero_byte": ("x = '\0'", [], {"exception"}),
    "lone_surrogate": ("x = '\ud800'", [], {"exception"}),
}


def every_tool():
    """Return the tools as parameters: the first that works runs by default, others if asked for."""
    has_one = False
    for tool in TOOLS:
        fault = fault_of(tool)
        marks = [pytest.mark.skipif(fault is not None, reason=f"no sandbox by {tool}: {fault}")]
        yield pytest.param(tool, marks=[*marks, pytest.mark.slow] if has_one else marks)
        has_one = has_one or fault is None


EVERY_TOOL = list(every_tool())


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    """Offer a secret in a file and in the environment, and servers; name what belongs to a test."""
    tag = f"tag{uuid.uuid4().hex}"
    monkeypatch.setenv("SECRET", tag)
    # Processes of the sandbox and their forks carry the tag in their command.
    monkeypatch.setattr(sandbox, "_BOOTSTRAP_JUDGE", f"{sandbox._BOOTSTRAP_JUDGE}# {tag}\n")
    (tmp_path / "secret").write_text(tag)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as by_path,
        socket.socket(socket.AF_UNIX) as by_name,
    ):
        monkeypatch.chdir(tmp_path)
        by_path.bind("socket")
        by_name.bind(f"\0{tag}")
        for listener in (by_path, by_name):
            listener.listen()
        port = server.getsockname()[1]
        yield {"tag": tag, "folder": str(tmp_path), "port": str(port), "file": __file__}


def filled(text, surroundings):
    for name, value in surroundings.items():
        text = text.replace(f"<{name}>", value)
    return text


def commands():
    """Return the command lines of all processes, one text each."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:  # it has ended meanwhile
            continue
    return found


def left_files(tag, folder):
    """Return files that carry the tag, in all folders that a program might write to."""
    folders = ["/", "/tmp", "/var/tmp", "/dev/shm", "/dev", "/usr", "/etc"]  # noqa: S108 (to look)
    places = [folder, Path.home(), *map(Path, folders)]
    return [path for place in places for path in place.glob(f"{tag}*")]


def judge(tool, timeout_s=TIMEOUT_S):
    # A new judge remembers no verdict.
    return CodeJudge(allow_code_execution=True, limits=Limits(timeout_s=timeout_s), tool=tool)


@pytest.mark.parametrize("tool", EVERY_TOOL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_scores_0_in_time_and_leaves_nothing(name, tool, surroundings, tmp_path):
    solution, tests, reasons = PROGRAMS[name]
    before = sorted(tmp_path.iterdir())
    start = time.monotonic()
    program = Program(filled(solution, surroundings), tuple(tests or [TEST]))
    (verdict,) = judge(tool).judge([program])
    seconds = time.monotonic() - start
    assert verdict.reason in reasons, verdict
    assert seconds < sandbox.START_S
    assert [text for text in commands() if surroundings["tag"] in text] == []
    assert left_files(surroundings["tag"], tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before
    (following,) = judge(tool, timeout_s=20).judge([Program(RIGHT, (TEST,))])
    assert following.reason == "passed", following


def test_there_are_hostile_programs():
    assert len(PROGRAMS) > 80
    assert not any("passed" in reasons or "error" in reasons for *_, reasons in PROGRAMS.values())


MUTANTS = [
    # What is taken out of the judge, and programs that pass then
    (
        "sys.addaudithook(_make_audit_hook(raised))",
        "pass",
        ["read_callers_frame", "frames_by_every_way", "collector", "native_code_again"],
    ),
    ("sys.modules.update(", "dict(", ["main_module"]),
    ("and key not in kept_names", "", ["redefined_guard", "redefined_builtins"]),
    ("base in proxies", "False", ["equal_by_proxy", "equal_mapping_by_proxy"]),
    (
        "get_contents(modules[place[0]])[place[1]] is owner",
        "True",
        ["equal_under_the_name_of_a_class_of_the_library"],
    ),
    (
        "name in members and not is_known(members[name], base)",
        "False",
        ["equal_to_everything", "equal_number", "equal_by_metaclass", "equal_by_borrowed_method",
         "equal_in_list", "contains_everything", "small_difference",
         "equal_by_mock", "equal_by_magic_mock", "equal_by_method_of_the_library",
         "equal_in_a_list_of_the_library", "equal_in_a_queue"],
    ),
    ("depth < _MAX_DEPTH", "False", ["equal_in_list", "equal_in_a_queue"]),
    ("copies[name] if name in copies else", "", ["patched_import", "patched_import_in_call"]),
    ('tests_scope["__builtins__"] = tests_builtins', "pass", ["patched_function_of_test"]),
]  # fmt: skip


@pytest.mark.parametrize("tool", EVERY_TOOL)
@pytest.mark.parametrize(("shipped", "weaker", "names"), MUTANTS)
def test_a_weaker_judge_lets_them_pass(shipped, weaker, names, tool, monkeypatch):
    init, _ = sandbox._inner_code()
    text = Path(sandbox_judge.__file__).read_text()
    assert text.count(shipped) == 1
    mutant = compile(text.replace(shipped, weaker), "judge", "exec")
    monkeypatch.setattr(sandbox, "_inner_code", lambda: (init, mutant))
    programs = [Program(PROGRAMS[name][0], tuple(PROGRAMS[name][1] or [TEST])) for name in names]
    if "tests_builtins" in shipped:  # the guard is gone with them
        monkeypatch.setattr(execution, "GUARD_NAME", "abs")
        monkeypatch.setattr(execution, "_prepared", execution._prepared.__wrapped__)
    verdicts = judge(tool, timeout_s=20).judge(programs)
    assert [verdict.reason for verdict in verdicts] == ["passed"] * len(names), verdicts


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_the_checks_see_what_is_left(tool, surroundings, tmp_path):
    sleeper = "import time\ntime.sleep(1000)"
    running = threading.Thread(target=judge(tool).judge, args=([Program(sleeper, ())],))
    running.start()
    while sum(surroundings["tag"] in text for text in commands()) < 3:
        assert running.is_alive()
    running.join()
    (tmp_path / f"{surroundings['tag']}-left").touch()
    assert left_files(surroundings["tag"], tmp_path)


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_memory_of_many_processes_counts_together(tool):
    solution = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0: break\n"
        "data = bytes([1]) * (200 << 20)\n"
        "time.sleep(1000)"
    )
    own = CodeJudge(
        allow_code_execution=True, limits=Limits(timeout_s=20, memory_mb=300), tool=tool
    )
    start = time.monotonic()
    (verdict,) = own.judge([Program(solution, ())])
    assert verdict.reason == "memory"
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_one_that_is_stuck_delays_nobody(tool):
    start = time.monotonic()
    stuck = [Program(f"# {n}\nwhile True: pass", ()) for n in range(3)]
    quick = [Program(f"# {n}\n{RIGHT}", (TEST,)) for n in range(6)]
    own = CodeJudge(allow_code_execution=True, limits=Limits(timeout_s=4), max_workers=4, tool=tool)
    verdicts = own.judge([*stuck, *quick])
    assert [verdict.reason for verdict in verdicts] == ["timeout"] * 3 + ["passed"] * 6
    assert time.monotonic() - start < 3 * 4


PARENT = """
import sys
from diversed.tasks import sandbox
from diversed.tasks.execution import CodeJudge, Program
sandbox._BOOTSTRAP_JUDGE += sys.argv[1]
judge = CodeJudge(allow_code_execution=True, limits=sandbox.Limits(timeout_s=100), tool=sys.argv[2])
judge.judge([Program("import time; time.sleep(1000)", ())])
"""


@pytest.mark.parametrize("tool", EVERY_TOOL)
def test_nothing_outlives_the_parent(tool):
    tag = f"# {uuid.uuid4().hex}"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, tag, tool], cwd=Path(__file__).parents[3]
    )
    while sum(tag in text for text in commands()) < 4:  # it, the tool, the first process, the judge
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(tag in text for text in commands()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
