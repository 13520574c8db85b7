"""Loads models and a head from a hub of its own, then again when that hub is gone.

Run by `test_hub_models.py` as a script: where the hub is must be known before it is imported.
Arguments: a folder for the head, and the commit that the hub shall name. Prints a report as JSON.
"""

import json
import logging
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar


class Hub(BaseHTTPRequestHandler):
    """Serves folders as repositories with one commit each."""

    folders: ClassVar[dict[str, Path]] = {}
    commit = ""

    def answer(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and parts[4:5] == ["revision"]:
            self.answer_question("/".join(parts[2:4]), parts[5])
        else:
            self.answer_file("/".join(parts[:2]), "/".join(parts[4:]))

    do_GET = do_HEAD = answer

    def answer_question(self, name, revision):
        if name not in self.folders:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision != "main":
            self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self.send(200, json.dumps({"id": name, "sha": self.commit}).encode(), {})

    def answer_file(self, name, file):
        path = self.folders.get(name, Path("nowhere")) / file
        if path.is_file():
            tag = f'"{name.replace("/", "-")}-{path.name}"'
            self.send(200, path.read_bytes(), {"X-Repo-Commit": self.commit, "ETag": tag})
        else:
            missing = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit}
            self.send(404, b"", missing)

    def send(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def main(head_folder, commit):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    report = run(Path(head_folder), commit, server)
    sys.stdout.write(json.dumps(report) + "\n")


def run(head_folder, commit, server):
    from diversed.models.checkpoint import load_head, new_head
    from diversed.models.loading import (
        TINY_FOLDER,
        LoadingError,
        ModelSource,
        load_pair,
        load_tiny_pair,
    )

    logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s")
    embedded = load_tiny_pair()
    new_head(embedded, initial_weight=0.25).save_pretrained(head_folder)
    Hub.commit = commit
    Hub.folders = {
        "some/target": TINY_FOLDER / "target",
        "some/draft": TINY_FOLDER / "draft",
        "some/head": head_folder,
    }

    def load(**changes):
        roles = {"target": ModelSource("some/target"), "draft": ModelSource("some/draft")}
        return load_pair(**(roles | changes)).description

    def weight():
        return load_head("some/head", embedded).layers[-1].bias.detach().sigmoid().item()

    def failure(attempt, *arguments, **named):
        start = time.perf_counter()
        try:
            attempt(*arguments, **named)
        except LoadingError as error:
            return str(error), time.perf_counter() - start

    report = {"online": load(), "online_weight": weight()}
    failures = {
        "name": failure(load, target=ModelSource("some/other")),
        "revision": failure(load, draft=ModelSource("some/draft", revision="v9")),
    }
    server.shutdown()
    server.server_close()
    start = time.perf_counter()
    report |= {"cached": load(), "cached_weight": weight()}
    report["cached_s"] = time.perf_counter() - start
    failures["unreachable"] = failure(load, target=ModelSource("some/other"))
    failures["head"] = failure(load_head, "some/other-head", embedded)
    return report | {"failures": failures}


if __name__ == "__main__":
    main(*sys.argv[1:])
