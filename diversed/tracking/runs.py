"""The runs of a Weights & Biases project, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import wandb


class TrackerError(Exception):
    """A project cannot be read; the message is one line."""


@dataclass(frozen=True)
class TrackedRun:
    """One run.

    Attributes:
        name: Display name.
        url: Address of its page.
        state: W&B's word: running, finished, failed, crashed, killed, ...
        config: What was logged as hyper-parameters.
        summary: Last value of every logged number.
        created_at: Time, as W&B writes it.
        git_sha: Commit of the code, where W&B knows it.
    """

    name: str
    url: str
    state: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    created_at: str | None
    git_sha: str | None


def read_runs(path: str) -> list[TrackedRun]:
    """Return every run of a project, oldest first.

    Args:
        path: "entity/project".

    Raises:
        TrackerError: There is no login, no connection or no such project.
    """
    if path.count("/") != 1 or not all(path.split("/")):
        raise TrackerError("give entity/project")
    try:
        runs = list(wandb.Api().runs(path, order="+created_at", lazy=False))
    except Exception as error:  # W&B's own, of its service process, ValueError: no common class
        raise TrackerError(" ".join(str(error).split()) or type(error).__name__) from error
    return [
        TrackedRun(
            name=run.name,
            url=run.url,
            state=run.state,
            config=dict(run.config),
            summary=dict(run.summary_metrics),
            created_at=run.created_at,
            git_sha=getattr(run, "commit", None),
        )
        for run in runs
    ]
