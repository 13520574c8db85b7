"""What the README tells people to type works."""

import importlib.util
import re
import runpy
import shlex
from pathlib import Path

import pytest
from composed import ROOT, composed, points

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash", "console", "shell")


def typed() -> list[list[str]]:
    """Return the words of every command line of the shell blocks."""
    lines = [line for kind, body in BLOCKS if kind in SHELL for line in body.splitlines()]
    commands = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [words for words in commands if words]


def scripts() -> list[list[str]]:
    return [words for words in typed() if words[0].endswith("python") and words[1].endswith(".py")]


@pytest.mark.parametrize("words", scripts(), ids=" ".join)
def test_script_lines_compose(words: list[str]) -> None:
    script, *arguments = words[1:]
    assert (ROOT / script).is_file()
    flags = {word for word in arguments if word.startswith("-")}
    assert flags <= {"-m", "--multirun"}
    overrides = [re.sub(r"<\w+>", "some", word) for word in arguments if word not in flags]
    found = points(overrides)
    assert (len(found) > 1) == bool(flags)
    for point in found:
        cfg = composed(Path(script).stem, *point)
        for override in point:
            key, value = override.split("=", 1)
            node = cfg
            for part in key.split("."):
                node = node[part]
            shown = node.get("name", value) if hasattr(node, "get") else node
            assert str(shown) in (value, str(float(value)) if value.isdigit() else value)


def test_both_scripts_are_shown() -> None:
    assert {words[1] for words in scripts()} >= {"train.py", "eval.py"}


def test_make_targets_exist() -> None:
    in_text = re.findall(r"`make (\w+)", README)
    targets = {words[1] for words in typed() if words[0] == "make"} | set(in_text)
    assert {"demo", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert sorted(target for target in targets if f"\n{target}:" not in makefile) == []


def test_modules_that_are_run_exist() -> None:
    modules = [words[2] for words in typed() if words[:2] == ["python", "-m"]]
    modules += re.findall(r"`python -m ([\w.]+)", README)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_files_and_folders_that_are_linked_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert "CONTRIBUTING.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_python_blocks_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [body for kind, body in BLOCKS if kind == "python"]
    assert bodies
    for index, body in enumerate(bodies):
        file = tmp_path / f"example_{index}.py"
        file.write_text(body)
        runpy.run_path(str(file))
        assert "#### " in capsys.readouterr().out
