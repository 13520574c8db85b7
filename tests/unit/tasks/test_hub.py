"""Rows from a hub and from its cache, in processes of their own: addresses are read at import."""

import json
import os
import socket
import subprocess
import sys

import pytest
from fake_hub import COMMIT, card, fake_hub

from diversed.tasks import hub
from diversed.tasks.base import TaskDataError
from diversed.tasks.gsm8k import Gsm8kTask
from diversed.tasks.hub import HubData

pytestmark = pytest.mark.e2e

OTHER_COMMIT = "f" * 40
PROGRAM = """
import json, sys, time
from diversed.tasks.base import TaskDataError
from diversed.tasks.gsm8k import Gsm8kTask
answers = []
for settings in json.loads(sys.argv[1]):
    task = Gsm8kTask(**settings)
    started = time.monotonic()
    try:
        splits = ("train", "validation", "test")
        rows = {split: task.examples(split)["question"][:] for split in splits}
        answer = {"rows": rows, "provenance": task.provenance()}
    except TaskDataError as error:
        answer = {"error": str(error)}
    answers.append(answer | {"seconds": time.monotonic() - started})
sys.stdout.write(json.dumps(answers))
"""


def lines(name, number):
    rows = [{"question": f"{name} {index}", "answer": f"#### {index}"} for index in range(number)]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def ask(home, endpoint, *settings):
    """Load GSM8K with each of the settings, in a process of its own; return what came of it."""
    environment = os.environ | {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def closed_endpoint():
    """Return an address that nobody answers at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return the home of a cache."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def online(home):
    """Return what a process got from a hub; it has filled the cache since."""
    files = {
        "README.md": card("main", {"train": "main/train.jsonl", "test": "main/test.jsonl"}),
        "main/train.jsonl": lines("train", 30),
        "main/test.jsonl": lines("test", 5),
    }
    with fake_hub("openai/gsm8k", files) as endpoint:
        (answer,) = ask(home, endpoint, {})
    return answer


def test_the_hubs_rows_are_loaded_and_validation_is_carved(online):
    rows = online["rows"]
    assert rows["test"] == [f"test {index}" for index in range(5)]
    assert {name: len(part) for name, part in rows.items()} == {
        "train": 27,
        "validation": 3,
        "test": 5,
    }
    assert set(rows["train"] + rows["validation"]) == {f"train {index}" for index in range(30)}


def test_the_commit_that_was_used_is_known(online):
    provenance = online["provenance"]
    assert (provenance["revision"], provenance["commit"]) == ("main", COMMIT)
    assert provenance["path"] is None


def test_the_cache_serves_where_the_hub_cannot_be_reached(home, online, closed_endpoint):
    """It used to take half a minute of retries, and another commit was taken without a word."""
    settings = ({}, {"revision": OTHER_COMMIT}, {"revision": COMMIT[:8]})
    cached, refused, abbreviated = ask(home, closed_endpoint, *settings)
    assert cached["rows"] == abbreviated["rows"] == online["rows"]
    assert cached["provenance"]["commit"] == COMMIT
    assert cached["seconds"] < 10
    assert f"data.revision={OTHER_COMMIT}" in refused["error"]
    assert f"at {COMMIT}" in refused["error"]


def test_no_hub_and_an_empty_cache_are_one_line_and_fast(tmp_path, closed_endpoint):
    (refused,) = ask(tmp_path, closed_endpoint, {})
    assert "openai/gsm8k main at revision main cannot be loaded" in refused["error"]
    assert "give data.path=" in refused["error"]
    assert "\n" not in refused["error"]
    assert refused["seconds"] < 10


def test_nothing_is_known_or_fetched_before_rows_are_asked_for():
    task = Gsm8kTask()
    assert task.provenance()["commit"] is None
    assert HubData("openai/gsm8k", "main", "main").commit is None


@pytest.mark.parametrize(
    ("failure", "is_there"),
    [
        (hub.urllib.error.HTTPError("http://hub", 404, "no such page", None, None), True),
        (hub.urllib.error.URLError(hub.ssl.SSLError("certificate")), True),
        (hub.urllib.error.URLError(OSError("no route")), False),
        (TimeoutError("slow"), False),
    ],
)
def test_a_server_that_answers_at_all_is_there(monkeypatch, failure, is_there):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(hub.urllib.request, "urlopen", fail)
    assert hub._is_reachable("http://hub") is is_there


def test_a_failure_of_the_library_names_the_data_set(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("Dataset scripts are no longer supported\nbut found gsm8k.py")

    monkeypatch.setattr(hub, "Cache", fail)
    with pytest.raises(TaskDataError, match=r"someone/old at revision v1 .*scripts are no longer"):
        HubData("someone/old", None, "v1").read("test")
