"""A Hugging Face hub on this machine that serves one data set, as far as `datasets` asks."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def card(config_name: str, files: dict[str, str]) -> bytes:
    """Return a README that names the files of each split."""
    lines = ["---", "configs:", f"- config_name: {config_name}", "  data_files:"]
    for split, path in files.items():
        lines += [f"  - split: {split}", f"    path: {path}"]
    return "\n".join([*lines, "---", ""]).encode()


@contextmanager
def fake_hub(hub_id: str, files: dict[str, bytes]) -> Iterator[str]:
    """Serve the files of a data set at one commit.

    Yields:
        The address, for the environment variable HF_ENDPOINT.
    """

    def entry(path: str) -> dict[str, object]:
        content = files[path]
        digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return {"type": "file", "path": path, "size": len(content), "oid": digest}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def answer_json(self, content: object) -> None:
            self.answer(200, json.dumps(content).encode(), Content_Type="application/json")

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = self.path.split("?")[0]
            resolve, api = f"/datasets/{hub_id}/resolve/", f"/api/datasets/{hub_id}/"
            if path.startswith(resolve):
                _, _, name = path.removeprefix(resolve).partition("/")
                if name in files:
                    etag = f'"{entry(name)["oid"]}"'
                    self.answer(200, files[name], X_Repo_Commit=COMMIT, ETag=etag)
                    return
            elif path.startswith(f"{api}revision/"):
                siblings = [{"rfilename": name} for name in files]
                self.answer_json({"id": hub_id, "sha": COMMIT, "siblings": siblings})
                return
            elif path.startswith(f"{api}tree/"):
                self.answer_json([entry(name) for name in files])
                return
            self.answer(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
