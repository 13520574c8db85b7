"""check=true as users run it: exit codes, what stands where, and nothing on disk."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from composed import SMALL_DATA
from script_processes import run_script

pytestmark = pytest.mark.e2e

CHECK = ("check=true", *SMALL_DATA)
COMMIT = "c0ffee" + "0" * 34
GATED = "meta-llama"
STEPS = ["settings", "target", "draft", "tokenizers", "data", "prompts", "memory", "two prompts"]


class GatedHub(BaseHTTPRequestHandler):
    """A hub that says which commit of a model there is, and gives none of its files."""

    def answer(self) -> None:
        is_question = self.path.startswith("/api/models/")
        body = f'{{"id": "some/model", "sha": "{COMMIT}"}}'.encode() if is_question else b""
        self.send_response(200 if is_question else 403)
        if not is_question:
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("X-Error-Message", "Access to model is restricted.")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_GET = do_HEAD = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gated_hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), GatedHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_run_that_can_start_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    done = run_script(tmp_path, "train.py", *CHECK, "decoding.max_new_tokens=16")
    assert done.returncode == 0, done.stderr
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    results = {what.strip(): result.strip() for what, result, _ in rows if what.strip()}
    assert results == dict.fromkeys(STEPS, "ok")
    assert list(tmp_path.iterdir()) == []


def test_gated_models_are_problems_that_say_how_to_log_in(tmp_path: Path, gated_hub: str) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    done = run_script(
        *(work, "eval.py", *CHECK, "model=llama"),
        HF_ENDPOINT=gated_hub,
        HF_HOME=str(home),
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_TELEMETRY="1",
        NO_PROXY="127.0.0.1",
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    names = ("Llama-3.1-8B-Instruct", "Llama-3.2-1B-Instruct")
    assert len(lines) == 2
    for line, role, name in zip(lines, ("target", "draft"), names, strict=True):
        assert line.startswith(f"{role}: model.{role}.name={GATED}/{name}: cannot be loaded")
        assert f"gated: ask for access at {gated_hub}/{GATED}/{name}" in line
        assert "log in with `hf auth login`" in line
    assert list(work.iterdir()) == []
