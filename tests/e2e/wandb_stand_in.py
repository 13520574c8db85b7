"""A small stand-in for the part of W&B's server that sweeps and the reader of runs talk to.

It answers the GraphQL calls of `wandb sweep`, `wandb agent` and `wandb.Api().runs` on the loopback
address, hands out the points of a grid one at a time, and keeps what it was told. It checks no
key, keeps no files, and takes no runs: those are offline.
"""

import itertools
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import yaml

ENTITY, PROJECT, SWEEP = "someone", "trial", "sweep1"
API_KEY = "0" * 40


class StandIn(ThreadingHTTPServer):
    """The server; use it as a context.

    Attributes:
        sweep: Config of the sweep that a client made.
        started: Values of the points that an agent was told to run, in order.
        runs: Runs of the project, as nodes of W&B's `Runs` query, all but what they share.
        unknown: Queries that had no answer.
    """

    daemon_threads = True

    def __init__(self, runs: list[dict[str, Any]] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sweep: dict[str, Any] = {}
        self.started: list[dict[str, Any]] = []
        self.runs = runs or []
        self.unknown: list[str] = []

    def __enter__(self) -> "StandIn":
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to talk to this server and to no other."""
        return {
            "WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}",
            "WANDB_API_KEY": API_KEY,
            "WANDB_ERROR_REPORTING": "false",
        }

    def points(self) -> list[dict[str, Any]]:
        """Return the grid of the sweep."""
        parameters = self.sweep["parameters"]
        lists = [e["values"] if "values" in e else [e["value"]] for e in parameters.values()]
        return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*lists)]

    def answer(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a GraphQL query."""
        for name, reply in _REPLIES.items():
            if name in query:
                return reply(self, variables)
        self.unknown.append(query)
        return {}


def _viewer(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    user = {"id": "1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
    return {"viewer": user | {"teams": {"edges": []}}}


def _make_sweep(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    server.sweep = yaml.safe_load(variables["config"])
    project = {"id": "2", "name": PROJECT, "entity": {"id": "1", "name": ENTITY}}
    return {
        "upsertSweep": {
            "sweep": {"name": SWEEP, "project": project},
            "configValidationWarnings": [],
        }
    }


def _give_sweep(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    known = {"id": "3", "name": SWEEP, "config": yaml.safe_dump(server.sweep, sort_keys=False)}
    found = known | {"runs": {"edges": []}} if variables["sweep"] == SWEEP else None
    return {"project": {"sweep": found}}


def _take_agent(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    return {"createAgent": {"agent": {"id": "4"}}}


def _next_command(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    commands: list[dict[str, Any]] = []
    left = server.points()[len(server.started) :]
    if not json.loads(variables["runState"]):  # the agent runs nothing
        if left:
            server.started.append(left[0])
            arguments = {key: {"value": value} for key, value in left[0].items()}
            name = f"run{len(server.started)}"
            command = {"type": "run", "run_id": name, "program": server.sweep["program"]}
            commands = [command | {"args": arguments}]
        else:
            commands = [{"type": "exit"}]
    return {"agentHeartbeat": {"agent": {"id": "4"}, "commands": json.dumps(commands)}}


def _list_runs(server: StandIn, variables: Mapping[str, Any]) -> dict[str, Any]:
    if (variables["entity"], variables["project"]) != (ENTITY, PROJECT):
        return {"project": None}
    shared = {
        "projectId": "2",
        "tags": [],
        "sweepName": None,
        "readOnly": False,
        "createdAt": "2026-01-02T03:04:05Z",
        "user": {"name": ENTITY, "username": ENTITY},
    }
    edges = [
        {"node": shared | {"id": str(number)} | run, "cursor": str(number)}
        for number, run in enumerate(server.runs)
    ]
    page = {"endCursor": None, "hasNextPage": False}
    return {
        "project": {
            "internalId": "2",
            "runCount": len(edges),
            "readOnly": False,
            "runs": {"edges": edges, "pageInfo": page},
        }
    }


_REPLIES = {
    "query Viewer": _viewer,
    "query GetDefaultEntity": _viewer,
    "mutation UpsertSweep": _make_sweep,
    "query SweepWithRuns": _give_sweep,
    "mutation CreateAgent": _take_agent,
    "mutation Heartbeat": _next_command,
    "query Runs(": _list_runs,
}


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/graphql":  # telemetry
            self.send_error(404)
            return
        request = json.loads(body)
        data = self.server.answer(request["query"], request.get("variables") or {})
        content = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""
